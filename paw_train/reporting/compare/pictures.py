"""Pictures of a comparison as SVG files that stand alone, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paw_train.reporting.compare.analysis import ArmSummary, Comparison, Difference
from paw_train.reporting.compare.curves import MEASUREMENTS, RANGE_NOTE, Measurement, pairs
from paw_train.reporting.compare.results import CellResult
from paw_train.reporting.compare.tables import signed
from paw_train.reporting.run.charts import ChartStyle, Series, chart_parts
from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.scales import Axis, linear_ticks

_WIDTH = 900.0
_COLUMNS = 3
_CHART = ChartStyle(width=290, height=180, left=46, bottom=34, share=True, x_label="update")
_ROW = 24.0
_STYLE = """
.cmp { --bg: #ffffff; --ink: #1a2129; --muted: #4c5763; --line: #d9dfe6; --c1: #1f5fbf; --c2: #c4570a; }
@media (prefers-color-scheme: dark) {
  .cmp { --bg: #11161c; --ink: #e4e9ef; --muted: #98a4b2; --line: #2c3643; --c1: #6ea8ff; --c2: #ffa657; }
}
.cmp text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  fill: var(--muted); }
.cmp .title { font-size: 15px; font-weight: 600; fill: var(--ink); } .cmp .arm { fill: var(--ink); }
.cmp .page { fill: var(--bg); } .cmp .grid { stroke: var(--line); } .cmp .axis { stroke: var(--muted); }
.cmp .zero { stroke: var(--muted); stroke-dasharray: 3 3; }
.cmp .line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; }
.cmp .faint { opacity: .35; } .cmp .dot { fill: currentColor; }
.cmp .seed { fill: currentColor; opacity: .35; }
.cmp .interval { stroke: currentColor; stroke-width: 1.8; }
.cmp .band { fill: currentColor; stroke: none; opacity: .15; }
.cmp .c1 { color: var(--c1); } .cmp .c2 { color: var(--c2); }
"""


def curves_picture(
    opponents: Mapping[str, str],
    cells: Sequence[CellResult],
    measurement: Measurement | None = None,
) -> Markup | None:
    """Small charts of one measurement, one an arm beside its opponent; ``None`` without data.

    Args:
        opponents: each arm and the one it is compared to.
        cells: the finished cells.
        measurement: what is drawn; ``None``: the first that there is data for.
    """
    candidates = [measurement] if measurement else MEASUREMENTS
    for chosen in candidates:
        charts = pairs(opponents, cells, chosen)
        if charts:
            return _grid_of_charts(chosen, charts)
    return None


def _grid_of_charts(measurement: Measurement, charts: Sequence[tuple[str, list[Series]]]) -> Markup:
    style = ChartStyle(
        width=_CHART.width, height=_CHART.height, share=measurement.share, x_label="update"
    )
    ys = [y for _, series in charts for s in series for y in s.values]
    parts = []
    for i, (_, series) in enumerate(charts):
        x, y = 10 + (i % _COLUMNS) * 298.0, 52 + (i // _COLUMNS) * 214.0
        body = [_legend(series), tag("g", chart_parts(series, style, hover=False))]
        parts.append(tag("g", *body, transform=f"translate({x:g} {y:g})"))
    height = 60 + math.ceil(len(charts) / _COLUMNS) * 214
    title = tag("text", measurement.title, x=12, y=24, class_="title")
    note = tag("text", RANGE_NOTE, x=_WIDTH - 12, y=24, text_anchor="end")
    return picture([title, note, *parts], height, measurement.title if ys else "")


def _legend(series: Sequence[Series]) -> Markup:
    parts, x = [], 8.0
    for s in series:
        parts.append(tag("line", x1=x, x2=x + 14, y1=-4, y2=-4, class_=f"line c{s.colour}"))
        parts.append(tag("text", s.label, x=x + 19, y=0, class_="arm"))
        x += 34 + 6.6 * len(s.label)
    return join(parts)


def forest_picture(comparison: Comparison) -> Markup:
    """Each arm's success with its interval, and its difference with its interval, a row an arm."""
    height = 92 + _ROW * len(comparison.arms)
    rates = [r for a in comparison.arms for r in (*a.rates, *(a.ci95 or ()))]
    ends = [v for d in comparison.differences for v in (*d.differences, *(d.ci95 or ()))] or [
        -0.1,
        0.1,
    ]
    reach = min(1.0, 1.08 * max(0.02, *(abs(v) for v in ends)))
    left = Axis(max(0.0, min(rates) - 0.03), min(1.0, max(rates) + 0.03), 190, 500)
    right = Axis(-reach, reach, 560, 880)
    base = height - 34
    parts = [
        _frame(left, base, "success after RL, %", lambda v: f"{100 * v:g}"),
        _frame(right, base, "difference in points", lambda v: f"{100 * v:+g}" if v else "0"),
        tag("line", x1=right.at(0), x2=right.at(0), y1=44, y2=base, class_="zero"),
        tag(
            "text",
            "Mean and 95 % t interval over seeds; pale: each seed",
            x=12,
            y=24,
            class_="title",
        ),
    ]
    for i, arm in enumerate(comparison.arms):
        parts.append(_row(arm, comparison.difference(arm.arm), 60 + _ROW * i, left, right))
    return picture(parts, height, "Success of each arm and its difference")


def _frame(axis: Axis, base: float, name: str, text: object) -> Markup:
    assert callable(text)
    parts = [tag("line", x1=axis.start, x2=axis.end, y1=base, y2=base, class_="axis")]
    for value in linear_ticks(axis.low, axis.high, 5):
        x = axis.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=44, y2=base, class_="grid"))
        parts.append(tag("text", text(round(value, 6)), x=x, y=base + 15, text_anchor="middle"))
    middle = (axis.start + axis.end) / 2
    return join([*parts, tag("text", name, x=middle, y=base + 30, text_anchor="middle")])


def _row(
    arm: ArmSummary, difference: Difference | None, y: float, left: Axis, right: Axis
) -> Markup:
    label = arm.arm if difference is None else f"{arm.arm} (to {difference.to})"
    parts = [tag("text", label, x=182, y=y + 4, text_anchor="end", class_="arm")]
    parts.append(_estimate(arm.rates, arm.mean, arm.ci95, y, left, "c2"))
    if difference is not None:
        marks = _estimate(difference.differences, difference.mean, difference.ci95, y, right, "c1")
        parts += [marks, tag("title", f"{label}: {signed(difference.mean)}")]
    return tag("g", *parts)


def _estimate(
    values: Sequence[float],
    mean: float,
    ends: tuple[float, float] | None,
    y: float,
    axis: Axis,
    colour: str,
) -> Markup:
    parts = [tag("circle", cx=axis.at(v), cy=y, r=2.6, class_="seed") for v in values]
    if ends is not None:
        parts.append(
            tag("line", x1=axis.at(ends[0]), x2=axis.at(ends[1]), y1=y, y2=y, class_="interval")
        )
    parts.append(tag("circle", cx=axis.at(mean), cy=y, r=4, class_="dot"))
    return tag("g", *parts, class_=colour)


def picture(parts: Sequence[Markup], height: float, label: str) -> Markup:
    """A complete SVG document, 900 pixels wide."""
    return tag(
        "svg",
        tag("style", Markup(_STYLE)),
        tag("rect", width=_WIDTH, height=height, class_="page"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        width=_WIDTH,
        height=height,
        class_="cmp",
        role="img",
        aria_label=label,
    )
