"""What a cell's folder says: not begun, begun, finished, or of other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from paw_train.algorithms.estimators import ADVANTAGES
from paw_train.reporting.compare.grid import Cell
from paw_train.settings import WITHOUT_EFFECT, Settings
from paw_train.settings.renamed import read_recorded
from paw_train.settings.sharing import shared_evaluation

_IRRELEVANT = (*WITHOUT_EFFECT, "name", "threads")
"""settings that may differ between runs of one cell; threads change the last digits only"""


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a run's result, as plain JSON values.

    Those of a part that is switched off are left out: a world model's coefficient, say, where there
    is no world model.
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


def differing_setting(found: Mapping[str, Any], cell: Cell) -> str | None:
    """The first setting (dotted) in which a run's settings differ from a cell's, or ``None``.

    Settings that are newer than the run have their defaults there.
    """
    try:
        known = Settings.read(found).to_dict()
    except ValueError as error:
        return str(error)
    return _difference(relevant(known), relevant(cell.settings.to_dict()), "")


def _difference(a: Any, b: Any, where: str) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = _difference(a.get(key), b.get(key), f"{where}.{key}".strip("."))
            if inner is not None:
                return inner
        return None
    return None if a == b else where


def check_settings(folder: Path, cell: Cell) -> None:
    """Raises ``ValueError`` where a cell's folder holds a run with other settings; names both."""
    config = folder / "config.json"
    if not config.exists():
        return
    changed = differing_setting(read_recorded(config), cell)
    if changed is not None:
        raise ValueError(
            f"Cell {cell.name} was begun with other settings (first difference: {changed}), and a "
            f"comparison must not mix them. Delete {folder} to run it anew, or give the grid "
            "another name (--name)."
        )


def is_finished(folder: Path) -> bool:
    """Whether a cell's run has ended: the evaluation after RL is its last file."""
    return (folder / "eval_after.json").exists()


def updates_done(folder: Path) -> int:
    """RL updates recorded."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def warm_start_place(cell: Cell) -> Path | None:
    """Equal for the cells that share a warm start and its evaluation; ``None``: they share none."""
    return shared_evaluation(cell.settings)


def is_made(warm_start: Path) -> bool:
    """Whether a shared warm start and its evaluation are there."""
    return (warm_start / "result.json").exists()
