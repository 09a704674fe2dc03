"""The page of a comparison: table, differences, learning curves, costs, settings; and its pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paw_gym.files import write_text
from paw_train.reporting.compare import tables
from paw_train.reporting.compare.analysis import Comparison
from paw_train.reporting.compare.curves import MEASUREMENTS, RANGE_NOTE, charts_of
from paw_train.reporting.compare.grid import Grid
from paw_train.reporting.compare.overhead import Overhead
from paw_train.reporting.compare.pictures import curves_picture, forest_picture
from paw_train.reporting.compare.results import RunResult
from paw_train.reporting.pages import render
from paw_train.reporting.run.charts import Chart, ChartStyle


def write_page(
    folder: Path,
    grid: Grid,
    comparison: Comparison,
    runs: Sequence[RunResult],
    costs: Sequence[Overhead] = (),
) -> None:
    """Writes ``compare.html``, ``differences.svg`` and (where there are curves) ``curves.svg``."""
    forest = forest_picture(comparison)
    curves = curves_picture(grid.baselines(), runs)
    write_text(folder / "differences.svg", forest + "\n")
    if curves is not None:
        write_text(folder / "curves.svg", curves + "\n")
    page = render(
        "compare.html",
        title=grid.name,
        description=grid.description,
        tiles=_tiles(grid, comparison),
        tables=tables,
        comparison=comparison,
        forest=forest,
        range_note=RANGE_NOTE,
        curves=_curves(grid, runs),
        types=_types(comparison),
        costs=costs,
        settings=[("all arms", _text(grid.overrides))]
        + [(arm.name, _text(arm.settings)) for arm in grid.arms],
    )
    write_text(folder / "compare.html", page)


def _tiles(grid: Grid, comparison: Comparison) -> list[tuple[str, str]]:
    return [
        ("recipe", Path(grid.recipe).stem),
        ("arms", str(len(comparison.arms))),
        ("seeds", str(max(len(arm.seeds) for arm in comparison.arms))),
        ("runs", str(sum(len(arm.seeds) for arm in comparison.arms))),
        ("tasks of the panel", str(comparison.arms[0].tasks)),
    ]


def _curves(grid: Grid, runs: Sequence[RunResult]) -> list[tuple[str, list[tuple[str, Chart]]]]:
    """(title, charts by arm) of the measurements that there is data for."""
    found = [
        (m.title, charts_of(grid.baselines(), runs, m, ChartStyle(share=m.share)))
        for m in MEASUREMENTS
    ]
    return [(title, charts) for title, charts in found if charts]


def _types(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of success by task type; no columns where there are no types."""
    names = sorted({name for arm in comparison.arms for name in arm.by_type})
    rows = [
        [
            arm.arm,
            *(tables.percent(arm.by_type[n]) if n in arm.by_type else "–" for n in names),
        ]
        for arm in comparison.arms
    ]
    return names, rows


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
