"""The results of a comparison in one file that is small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paw_gym.internals.files import json_text, write_text
from paw_train.metrics import METRICS, NOT_MEASURED, number
from paw_train.reporting.compare.grid import Grid, PlannedRun
from paw_train.reporting.compare.runs import differing_setting, relevant
from paw_train.reporting.run.data import RunData, load_run
from paw_train.settings.base import ARGUMENTS, flatten, nest

FORMAT = 1
_DIGITS = 5
"""significant digits of a measurement"""

_EVALUATION = ("mean_steps", "invalid_rate", "mean_reward", "errors", "seconds")


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    arm: str
    seed: int
    settings: dict[str, Any]
    """the settings that its result depends on, as nested plain values"""
    before: dict[str, Any] | None
    """the evaluation before RL: ``n``, ``success_rate``, ``by_type`` and more"""
    after: dict[str, Any]
    """the evaluation after RL"""
    validation: list[list[float]] = field(default_factory=list)
    """[update, success rate, tasks] on the selection panel"""
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    """one value for each update"""
    imported: bool = False
    """whether it was read from a results file instead of a run's folder"""

    @property
    def success_rate(self) -> float:
        return float(self.after["success_rate"])

    @property
    def successes(self) -> list[float] | None:
        """[n] success per task in the panel's order, after RL (a share of several rollouts), if recorded."""
        recorded = self.after.get("successes")
        if recorded is None:
            return None
        rollouts = [recorded] if isinstance(recorded, str) else recorded
        return [sum(map(int, task)) / len(rollouts) for task in zip(*rollouts, strict=True)]


def read_run(folder: Path, arm: str, seed: int) -> RunResult:
    """The result of a run from its folder."""
    run = load_run(folder)
    after = _evaluation(folder / "eval_after.json")
    if after is None:
        raise ValueError(f"{folder / 'eval_after.json'} is missing or damaged.")
    return RunResult(
        arm,
        seed,
        relevant(run.config),
        _evaluation(folder / "eval_before.json"),
        after | _world_model(folder / "world_model" / "trained.json"),
        [[r["update"], _rounded(r["success_rate"]), r.get("n", 0)] for r in run.validation],
        _series(run),
    )


def _evaluation(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: data[key] for key in ("n", "success_rate", "panel", "panel_hash")}
    except (OSError, json.JSONDecodeError, KeyError):
        return None
    kept["by_type"] = {
        name: {"n": part["n"], "success_rate": _rounded(part["success_rate"])}
        for name, part in data.get("by_type", {}).items()
    }
    kept |= {key: _rounded(data[key]) for key in _EVALUATION if key in data}
    runs = [run["successes"] for run in data.get("runs", [])]
    if "successes" in data:
        kept["successes"] = "".join("1" if success else "0" for success in data["successes"])
    elif runs:
        kept["successes"] = runs
    return kept


def _world_model(path: Path) -> dict[str, Any]:
    """NLL and AUROC on the transitions that all runs share (``held_out_episodes``), if measured."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    kept = {
        "common_nll": found["nll_per_token"]["mean"],
        "common_auroc": found.get("refusal_auroc"),
    }
    return {key: _rounded(value) for key, value in kept.items() if value is not None}


def _series(run: RunData) -> dict[str, list[float | None]]:
    keys = dict.fromkeys(METRICS)
    keys.update(dict.fromkeys(key for r in run.metrics for key in r if key not in NOT_MEASURED))
    found = {key: [_rounded(r.get(key)) for r in run.metrics] for key in keys}
    return {key: values for key, values in found.items() if any(v is not None for v in values)}


def _rounded(value: Any) -> Any:
    if number(value) is None:
        return None
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")


# --- the file ----------------------------------------------------------------------------------------

_SHARED = ("description", "baseline", "primary")
"""fields of a grid that its results file holds unchanged"""


def write_results(path: Path, grid: Grid, runs: Sequence[RunResult]) -> None:
    """Writes the results file, whole or not at all: settings that all share once, then a line per run."""
    flat = [dict(flatten(run.settings, ARGUMENTS)) for run in runs]
    common = dict(flat[0]) if flat else {}
    for settings in flat[1:]:
        common = {k: v for k, v in common.items() if k in settings and settings[k] == v}
    opening = {
        "format": FORMAT,
        "grid": grid.name,
        "recipe": Path(grid.recipe).stem,
        **{name: getattr(grid, name) for name in _SHARED},
        "against": dict(grid.against),
        "overrides": dict(grid.overrides),
        "arms": dict(grid.arms),
        "common_settings": common,
    }
    rows = []
    for run, settings in zip(runs, flat, strict=True):
        row = {**asdict(run), "settings": {k: settings[k] for k in settings if k not in common}}
        if not run.imported:
            del row["imported"]
        rows.append(json_text(row))
    text = json_text(opening, indent=1).removesuffix("\n}")
    text += ',\n "cells": [\n' + ",\n".join(rows) + "\n]}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def read_results(path: Path) -> tuple[Grid, list[RunResult]]:
    """The runs of a results file, and the grid that they belong to, with the seeds that the file holds."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"{path}: format {data['format']!r}; this version reads {FORMAT}.")
        common = data["common_settings"]
        runs = [
            RunResult(**{**row, "settings": nest({**common, **row["settings"]})})
            for row in data["cells"]
        ]
        grid = Grid(
            name=data["grid"],
            recipe=data["recipe"],
            seeds=tuple(sorted({run.seed for run in runs})) or (0,),
            arms=dict(data["arms"]),
            against=data.get("against", {}),
            overrides=data.get("overrides", {}),
            **{name: data.get(name) for name in _SHARED},
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no file of results of `paw compare` ({error!r}).") from None
    return grid, runs


def known_results(runs: Iterable[PlannedRun], found: Iterable[RunResult]) -> dict[str, RunResult]:
    """The results that belong to runs of a grid, by the run's name: only those with equal settings."""
    by_place = {(result.arm, result.seed): result for result in found}
    known = {}
    for run in runs:
        result = by_place.get((run.arm, run.seed))
        if result is not None and differing_setting(result.settings, run) is None:
            known[run.name] = result
    return known
