"""The compact results of a comparison: one file that holds every finished cell, small enough to commit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paw_gym.files import write_text
from paw_train.metrics import METRICS, NOT_MEASURED
from paw_train.reporting.compare.cells import differing_setting, relevant
from paw_train.reporting.compare.grid import Arm, Cell, Grid
from paw_train.reporting.run.run_data import RunData, load_run
from paw_train.settings.renamed import with_new_dotted_names, with_new_names

FORMAT = 1
_DIGITS = 5
"""significant digits of a measurement"""

_EVALUATION = ("mean_steps", "invalid_rate", "mean_reward", "errors", "seconds")


@dataclass(frozen=True)
class CellResult:
    """A finished cell."""

    arm: str
    seed: int
    settings: dict[str, Any]
    """what makes its result, as nested plain values"""
    before: dict[str, Any] | None
    """the evaluation before RL: ``n``, ``success_rate``, ``by_type`` and more"""
    after: dict[str, Any]
    """the evaluation after RL"""
    validation: list[list[float]] = field(default_factory=list)
    """[update, success rate, tasks] on the selection panel"""
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    """one value an update"""
    imported: bool = False
    """whether it was read from a file of results instead of a run's folder"""

    @property
    def success_rate(self) -> float:
        """After RL."""
        return float(self.after["success_rate"])

    @property
    def successes(self) -> list[float] | None:
        """[n] success per task in the panel's order, after RL: 0 or 1, or the share of several plays.

        ``None`` where not recorded.
        """
        recorded = self.after.get("successes")
        if recorded is None:
            return None
        plays = [recorded] if isinstance(recorded, str) else recorded
        return [sum(map(int, play)) / len(plays) for play in zip(*plays, strict=True)]


def read_cell(folder: Path, arm: str, seed: int) -> CellResult:
    """The result of a cell from its run's folder.

    Raises:
        ValueError: the evaluation after RL is missing or damaged.
    """
    run = load_run(folder)
    after = _evaluation(folder / "eval_after.json")
    if after is None:
        raise ValueError(f"{folder / 'eval_after.json'} is missing or damaged.")
    return CellResult(
        arm,
        seed,
        relevant(run.config),
        _evaluation(folder / "eval_before.json"),
        after,
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


def _series(run: RunData) -> dict[str, list[float | None]]:
    keys = dict.fromkeys(METRICS)
    keys.update(dict.fromkeys(key for r in run.metrics for key in r if key not in NOT_MEASURED))
    found = {key: [_rounded(r.get(key)) for r in run.metrics] for key in keys}
    return {key: values for key, values in found.items() if any(v is not None for v in values)}


def _rounded(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")


# --- the file ----------------------------------------------------------------------------------------


def write_results(path: Path, grid: Grid, cells: Sequence[CellResult]) -> None:
    """Writes the file of results, whole or not at all: settings that all share once, a cell a line."""
    flat = [dict(_flat(cell.settings)) for cell in cells]
    common = (
        {k: v for k, v in flat[0].items() if all(k in f and f[k] == v for f in flat)}
        if flat
        else {}
    )
    head = {
        "format": FORMAT,
        "grid": grid.name,
        "description": grid.description,
        "recipe": Path(grid.recipe).stem,
        "baseline": grid.baseline,
        "primary": grid.primary,
        "against": dict(grid.against),
        "overrides": dict(grid.overrides),
        "arms": {arm.name: dict(arm.settings) for arm in grid.arms},
        "common_settings": common,
    }
    rows = []
    for cell, settings in zip(cells, flat, strict=True):
        own = {k: v for k, v in settings.items() if k not in common}
        row = {
            "arm": cell.arm,
            "seed": cell.seed,
            "settings": own,
            "before": cell.before,
            "after": cell.after,
            "validation": cell.validation,
            "metrics": cell.metrics,
        }
        rows.append(json.dumps(row | ({"imported": True} if cell.imported else {})))
    text = json.dumps(head, indent=1).removesuffix("\n}")
    text += ',\n "cells": [\n' + ",\n".join(rows) + "\n]}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def read_results(path: Path) -> list[CellResult]:
    """The cells of a file of results.

    Raises:
        ValueError: the file is damaged, or not of this kind.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"{path}: format {data['format']!r}; this version reads {FORMAT}.")
        common = data["common_settings"]
        return [
            CellResult(
                row["arm"],
                row["seed"],
                with_new_names(_nested({**common, **row["settings"]})),
                row["before"],
                row["after"],
                row["validation"],
                row["metrics"],
                bool(row.get("imported")),
            )
            for row in data["cells"]
        ]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of results of `paw compare` ({error!r}).") from None


def read_grid(path: Path) -> Grid:
    """The grid that a file of results belongs to, with the seeds that it holds.

    Raises:
        ValueError: the file is damaged, or not of this kind.
    """
    cells = read_results(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Grid(
            name=data["grid"],
            recipe=data["recipe"],
            seeds=tuple(sorted({cell.seed for cell in cells})) or (0,),
            arms=tuple(Arm(name, with_new_dotted_names(arm)) for name, arm in data["arms"].items()),
            baseline=data["baseline"],
            against=data.get("against", {}),
            overrides=with_new_dotted_names(data.get("overrides", {})),
            description=data["description"],
            primary=data.get("primary"),
        )
    except (KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no file of results of `paw compare` ({error!r}).") from None


def known_results(cells: Iterable[Cell], found: Iterable[CellResult]) -> dict[str, CellResult]:
    """The results that belong to cells of a grid, by the cell's name: equal settings only."""
    by_place = {(result.arm, result.seed): result for result in found}
    known = {}
    for cell in cells:
        result = by_place.get((cell.arm, cell.seed))
        if result is not None and differing_setting(result.settings, cell) is None:
            known[cell.name] = result
    return known


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        full = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not full.endswith("kwargs"):
            yield from _flat(value, f"{full}.")
        else:
            yield full, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
