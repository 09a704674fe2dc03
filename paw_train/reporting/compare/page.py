"""The page of a comparison: table, differences, learning curves, costs, settings; and its pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from paw_gym.files import write_text
from paw_train.reporting.compare.analysis import Comparison
from paw_train.reporting.compare.curves import MEASUREMENTS, RANGE_NOTE, Measurement, pairs
from paw_train.reporting.compare.grid import Grid
from paw_train.reporting.compare.overhead import Overhead, overheads
from paw_train.reporting.compare.pictures import curves_picture, forest_picture
from paw_train.reporting.compare.results import CellResult
from paw_train.reporting.compare.tables import (
    COLUMNS,
    EXPLANATION,
    OVERHEAD_COLUMNS,
    OVERHEAD_EXPLANATION,
    SECONDARY_COLUMNS,
    SECONDARY_EXPLANATION,
    heading,
    measurements,
    overhead_rows,
    percent,
    row_of,
    secondary_rows,
)
from paw_train.reporting.run.charts import ChartStyle, Series, line_chart
from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.page import html_page


def write_page(
    folder: Path, grid: Grid, comparison: Comparison, cells: Sequence[CellResult]
) -> None:
    """Writes ``compare.html``, ``differences.svg`` and (where there are curves) ``curves.svg``."""
    forest = forest_picture(comparison)
    curves = curves_picture(grid.opponents(), cells)
    write_text(folder / "differences.svg", forest + "\n")
    if curves is not None:
        write_text(folder / "curves.svg", curves + "\n")
    body = [
        _header(grid, comparison),
        _table(comparison),
        tag("section", tag("h2", "At a glance"), forest_figure(comparison)),
        *(_curves(grid, cells, measurement) for measurement in MEASUREMENTS),
        *_secondary(comparison),
        _types(comparison),
        _costs(overheads(grid.opponents(), cells)),
        _settings(grid),
    ]
    write_text(folder / "compare.html", html_page(grid.name, join(body, "\n")))


def _header(grid: Grid, comparison: Comparison) -> Markup:
    runs = sum(len(arm.seeds) for arm in comparison.arms)
    facts = [
        ("recipe", Path(grid.recipe).stem),
        ("arms", str(len(comparison.arms))),
        ("seeds", str(max(len(arm.seeds) for arm in comparison.arms))),
        ("runs", str(runs)),
        ("tasks of the panel", str(comparison.arms[0].tasks)),
    ]
    return tag(
        "header",
        tag("p", "Comparison", class_="kicker"),
        tag("h1", grid.name),
        tag("p", grid.description) if grid.description else None,
        tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts), class_="tiles"),
    )


def _table(comparison: Comparison) -> Markup:
    rows = [_row(row_of(comparison, arm)) for arm in comparison.arms]
    return tag(
        "section",
        tag("h2", "Success after RL"),
        _plain_table(COLUMNS, rows),
        tag("p", EXPLANATION, class_="muted"),
        *(tag("p", note, class_="muted") for note in comparison.notes),
    )


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[Markup]]) -> Markup:
    names = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = tag("tbody", *(tag("tr", *row) for row in rows))
    return tag("div", tag("table", tag("thead", names), body), class_="scroll")


def forest_figure(comparison: Comparison) -> Markup:
    """The differences as a picture inside a page."""
    return tag("figure", forest_picture(comparison), class_="picture")


def _curves(grid: Grid, cells: Sequence[CellResult], measurement: Measurement) -> Markup:
    charts = pairs(grid.opponents(), cells, measurement)
    if not charts:
        return Markup()
    style = ChartStyle(share=measurement.share)
    figures = [_figure(arm, series, style) for arm, series in charts]
    return tag(
        "section",
        tag("h2", measurement.title),
        tag("p", RANGE_NOTE, class_="muted"),
        tag("div", *figures, class_="charts"),
    )


def _figure(arm: str, series: Sequence[Series], style: ChartStyle) -> Markup:
    keys = (tag("span", tag("i", class_=f"swatch c{s.colour}"), s.label) for s in series)
    caption = tag("figcaption", tag("span", *keys, class_="legend"))
    readout = tag("p", class_="readout", aria_live="polite")
    return tag("figure", caption, line_chart(series, arm, style), readout)


def _secondary(comparison: Comparison) -> list[Markup]:
    found = comparison.secondary
    parts = []
    for name in measurements(found):
        rows = [_row(cells) for cells in secondary_rows(found, name)]
        table = _plain_table(SECONDARY_COLUMNS, rows)
        summary = tag("summary", tag("b", heading(name)))
        parts.append(tag("details", summary, table))
    if not parts:
        return []
    note = tag("p", SECONDARY_EXPLANATION, class_="muted")
    return [tag("section", tag("h2", "Further measurements"), note, *parts)]


def _row(cells: Sequence[str]) -> list[Markup]:
    return [tag("th", cells[0], scope="row"), *(tag("td", c, class_="num") for c in cells[1:])]


def _types(comparison: Comparison) -> Markup:
    names = sorted({name for arm in comparison.arms for name in arm.by_type})
    if not names:
        return Markup()
    rows = [
        [
            tag("th", arm.arm, scope="row"),
            *(
                tag("td", percent(arm.by_type[n]) if n in arm.by_type else "–", class_="num")
                for n in names
            ),
        ]
        for arm in comparison.arms
    ]
    head = ["arm", *(name.replace("_", " ") for name in names)]
    return tag(
        "section", tag("h2", "Success by task type, %, mean over seeds"), _plain_table(head, rows)
    )


def _costs(found: Sequence[Overhead]) -> Markup:
    if not found:
        return Markup()
    rows = [_row(row) for row in overhead_rows(found)]
    return tag(
        "section",
        tag("h2", "Cost"),
        _plain_table(OVERHEAD_COLUMNS, rows),
        tag("p", OVERHEAD_EXPLANATION, class_="muted"),
    )


def _settings(grid: Grid) -> Markup:
    rows = [("all arms", grid.overrides), *((arm.name, arm.settings) for arm in grid.arms)]
    body = [
        tag("tr", tag("th", name, scope="row"), tag("td", tag("code", _settings_text(values))))
        for name, values in rows
    ]
    return tag(
        "section",
        tag("h2", "Settings that differ from the recipe's"),
        tag("table", tag("tbody", *body), class_="settings"),
    )


def _settings_text(values: object) -> str:
    assert hasattr(values, "items")
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
