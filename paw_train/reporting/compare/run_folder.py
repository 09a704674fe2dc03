"""The state of a run of a grid, by the files in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from paw_train.algorithms.estimators import ADVANTAGES
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.reporting.compare.grid import PlannedRun
from paw_train.settings import WITHOUT_EFFECT, Settings
from paw_train.settings.dotted import flatten
from paw_train.settings.run import read_recorded
from paw_train.settings.sharing import shared_evaluation, shared_warm_start

_IRRELEVANT = (*WITHOUT_EFFECT, "name", "threads")
"""settings that may differ although the run is the same; threads change the last digits only"""


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run's result depends on, as plain JSON values.

    Those of a part that is switched off are left out: for example a world model's coefficient, where
    there is no world model.
    """
    kept: dict[str, Any] = json.loads(json.dumps(settings))
    for name in _IRRELEVANT:
        *parents, last = name.split(".")
        reduce(dict.__getitem__, parents, kept).pop(last, None)
    if not kept["world_model"]["enabled"]:
        kept["world_model"] = {"enabled": False}
    learning = kept.pop("world_model_learning", {"method": "off"})
    if learning["method"] != "off":
        if learning["method"] == "rwml":
            learning.pop("sft", None)
        elif learning["easy"]["samples"] == 0:
            learning.pop("rwml", None)
        kept["world_model_learning"] = learning
    estimator = ADVANTAGES.get(kept["algorithm"]["name"])  # of a package that may be gone
    if estimator is not None and not estimator.needs_critic:
        kept["algorithm"].pop("critic", None)
    return kept


def differing_setting(found: Mapping[str, Any], run: PlannedRun) -> str | None:
    """The first setting (dotted) in which recorded settings differ from a planned run's, or ``None``.

    Settings that are newer than the record have their defaults there.
    """
    try:
        known = Settings.read(found).to_dict()
    except ValueError as error:
        return str(error)
    recorded = dict(flatten(relevant(known)))
    planned = dict(flatten(relevant(run.settings.to_dict())))
    names = {**recorded, **planned}
    return next((name for name in names if recorded.get(name) != planned.get(name)), None)


def check_settings(folder: Path, run: PlannedRun) -> None:
    """Raises ``ValueError`` where a folder holds a run with other settings; names both."""
    config = folder / "config.json"
    if not config.exists():
        return
    changed = differing_setting(read_recorded(config), run)
    if changed is not None:
        raise ValueError(
            f"Run {run.name} was begun with other settings (first difference: {changed}), and a "
            f"comparison must not mix them. Delete {folder} to run it again, or give the grid "
            "another name (--name)."
        )


def is_finished(folder: Path) -> bool:
    """Whether a run has ended: the evaluation after RL is its last file."""
    return (folder / "eval_after.json").exists()


def updates_done(folder: Path) -> int:
    """The number of RL updates that are recorded."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def shared_places(run: PlannedRun) -> tuple[Path, ...]:
    """The folders of what a run shares with others: its warm start, and the evaluation of that."""
    places = (shared_warm_start(run.settings), shared_evaluation(run.settings))
    return tuple(place for place in places if place is not None)


def is_made(place: Path) -> bool:
    """Whether a shared warm start, or its evaluation, is there."""
    return (place / "result.json").exists() or find_checkpoint(place) is not None
