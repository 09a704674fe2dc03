"""Line charts as inline SVG: axes, ticks, intervals, a smoothed line, values on hover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.scales import (
    Axis,
    linear_ticks,
    log_ticks,
    number_text,
    tick_labels,
    value_axis,
)

MAX_POINTS = 400
"""points drawn of one line; longer ones are averaged in buckets"""
MAX_STRIPS = 100
"""positions of one chart that show their values on hover"""
_DOTS_UP_TO = 40

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart."""

    label: str
    points: Sequence[Point]
    """(x, y) by rising x; ``None`` leaves a gap"""
    colour: int = 1
    """number of the colour in the style sheet"""
    intervals: Sequence[tuple[float, float, float]] = ()
    """(x, low, high)"""
    smooth: bool = False
    """add a running mean where the line is long"""
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) by rising x: an area behind the line"""

    @property
    def values(self) -> list[float]:
        """The finite y values."""
        return [y for _, y in self.points if y is not None]


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """Size (in pixels of the view box) and kind of the y axis."""

    width: float = 380
    height: float = 208
    left: float = 46
    right: float = 10
    top: float = 10
    bottom: float = 34
    share: bool = False
    full: bool = False
    """a share's axis runs from 0 to 1"""
    log: bool = False
    """logarithmic where the values allow and need it"""
    x_label: str = "update"


def line_chart(series: Sequence[Series], title: str, style: ChartStyle) -> Markup:
    """The chart as an ``<svg>`` element.

    Args:
        series: at least one of them with a finite value.
        title: what a screen reader says.
        style: size and axes.
    """
    return tag(
        "svg",
        chart_parts(series, style, hover=True),
        viewBox=f"0 0 {style.width:g} {style.height:g}",
        class_="chart",
        role="img",
        aria_label=title,
    )


def chart_parts(series: Sequence[Series], style: ChartStyle, hover: bool) -> Markup:
    """What stands inside the ``<svg>``: grid, ticks, lines, and with ``hover`` the values."""
    drawn = [s for s in (_shortened(s) for s in series) if s.values]
    x_axis, y_axis = _axes(drawn, style)
    parts = [_y_grid(y_axis, style), _x_ticks(x_axis, style)]
    parts += [_band(s, x_axis, y_axis) for s in drawn if s.band]
    parts += [_line(s, x_axis, y_axis) for s in drawn]
    if hover:
        parts.append(_hover_strips(drawn, x_axis, y_axis, style))
    return join(parts)


def smoothing_window(count: int) -> int:
    """Neighbours that the smoothed line of ``count`` points averages: odd; 1 for short lines."""
    count = min(count, MAX_POINTS)
    return 2 * max(1, round(count / 20)) + 1 if count >= 16 else 1


def running_mean(points: Sequence[Point]) -> tuple[int, list[Point]]:
    """(window, centred mean over ``window`` neighbours); near the ends, over as many as both sides have.

    A centred mean does not lag behind a steep curve, and its ends are the measured values.
    """
    window = smoothing_window(len(points))
    known = [(i, y) for i, (_, y) in enumerate(points) if y is not None]
    values = [y for _, y in known]
    means: dict[int, float] = {}
    for place, (i, _) in enumerate(known):
        reach = min(window // 2, place, len(values) - 1 - place)
        means[i] = sum(values[place - reach : place + reach + 1]) / (2 * reach + 1)
    return window, [(x, means.get(i)) for i, (x, _) in enumerate(points)]


def _shortened(series: Series) -> Series:
    points = list(series.points)
    if len(points) > MAX_POINTS:
        size = math.ceil(len(points) / MAX_POINTS)
        points = [_mean_point(points[i : i + size]) for i in range(0, len(points), size)]
    return replace(series, points=points)


def _mean_point(points: Sequence[Point]) -> Point:
    values = [y for _, y in points if y is not None]
    return points[-1][0], sum(values) / len(values) if values else None


def _axes(drawn: Sequence[Series], style: ChartStyle) -> tuple[Axis, Axis]:
    xs = [x for s in drawn for x, y in s.points if y is not None]
    low, high = min(xs), max(xs)
    if low == high:
        low, high = low - 1, high + 1
    x_axis = Axis(low, high, style.left + 4, style.width - style.right - 4)
    ys = [y for s in drawn for y in s.values]
    ys += [end for s in drawn for _, *ends in (*s.intervals, *s.band) for end in ends]
    start, end = style.height - style.bottom, style.top
    if style.full:
        return x_axis, Axis(0.0, max(1.0, *ys), start, end)
    log = style.log and min(ys) > 0 and max(ys) > 30 * min(ys)
    return x_axis, value_axis(ys, start, end, style.share, log)


def _y_grid(axis: Axis, style: ChartStyle) -> Markup:
    ticks = log_ticks(axis.low, axis.high) if axis.log else linear_ticks(axis.low, axis.high, 4)
    right = style.width - style.right
    parts = []
    for value, label in zip(ticks, tick_labels(ticks, style.share), strict=True):
        y = axis.at(value)
        parts.append(tag("line", x1=style.left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label, x=style.left - 6, y=y + 4, text_anchor="end"))
    return join(parts)


def _x_ticks(axis: Axis, style: ChartStyle) -> Markup:
    base = style.height - style.bottom
    parts = [
        tag("line", x1=style.left, x2=style.width - style.right, y1=base, y2=base, class_="axis")
    ]
    for value in linear_ticks(axis.low, axis.high, 6, integer=True):
        x = axis.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=base, y2=base + 4, class_="axis"))
        parts.append(tag("text", f"{value:g}", x=x, y=base + 16, text_anchor="middle"))
    middle = (axis.start + axis.end) / 2
    parts.append(
        tag(
            "text", style.x_label, x=middle, y=style.height - 3, text_anchor="middle", class_="name"
        )
    )
    return join(parts)


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    upper = [f"{x_axis.at(x):.1f} {y_axis.at(high):.1f}" for x, _, high in series.band]
    lower = [f"{x_axis.at(x):.1f} {y_axis.at(low):.1f}" for x, low, _ in reversed(series.band)]
    return tag("path", d=f"M{'L'.join([*upper, *lower])}Z", class_=f"band c{series.colour}")


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    colour = f"c{series.colour}"
    parts = [
        tag(
            "line",
            x1=x_axis.at(x),
            x2=x_axis.at(x),
            y1=y_axis.at(low),
            y2=y_axis.at(high),
            class_=f"whisker {colour}",
        )
        for x, low, high in series.intervals
    ]
    window, smoothed = running_mean(series.points) if series.smooth else (1, [])
    faint = " faint" if window > 1 else ""
    parts.append(
        tag("path", d=path_of(series.points, x_axis, y_axis), class_=f"line {colour}{faint}")
    )
    if window > 1:
        parts.append(tag("path", d=path_of(smoothed, x_axis, y_axis), class_=f"line {colour}"))
    elif len(series.points) <= _DOTS_UP_TO:
        parts += [
            tag("circle", cx=x_axis.at(x), cy=y_axis.at(y), r=2.4, class_=f"dot {colour}")
            for x, y in series.points
            if y is not None
        ]
    return join(parts)


def path_of(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> str:
    """The ``d`` of a path through points; a point alone between gaps becomes a dot (round caps)."""
    out: list[str] = []
    pen_down = False
    for i, (x, y) in enumerate(points):
        if y is None:
            pen_down = False
            continue
        out.append(f"{'L' if pen_down else 'M'}{x_axis.at(x):.1f} {y_axis.at(y):.1f}")
        alone = not pen_down and (i + 1 == len(points) or points[i + 1][1] is None)
        out += ["h0"] if alone else []
        pen_down = True
    return "".join(out)


def _hover_strips(drawn: Sequence[Series], x_axis: Axis, y_axis: Axis, style: ChartStyle) -> Markup:
    """One invisible strip a position: over it, a marker and the values appear, without any script."""
    xs = sorted({x for s in drawn for x, y in s.points if y is not None})
    xs = xs[:: math.ceil(len(xs) / MAX_STRIPS)]
    tables = [{x: y for x, y in s.points if y is not None} for s in drawn]
    ranges = [{x: (low, high) for x, low, high in s.intervals} for s in drawn]
    places = [x_axis.at(x) for x in xs]
    edges = [style.left, *((a + b) / 2 for a, b in pairwise(places))]
    edges.append(style.width - style.right)
    parts = []
    for x, place, (left, right) in zip(xs, places, pairwise(edges), strict=True):
        lines, marks = [f"{style.x_label} {x:g}"], []
        for s, table, spans in zip(drawn, tables, ranges, strict=True):
            if x not in table:
                continue
            text = number_text(table[x], style.share)
            if x in spans:
                text += " [{}, {}]".format(*(number_text(end, style.share) for end in spans[x]))
            lines.append(f"{s.label}: {text}")
            marks.append(
                tag("circle", cx=place, cy=y_axis.at(table[x]), r=4, class_=f"c{s.colour}")
            )
        height = style.height - style.bottom - style.top
        area = tag("rect", x=left, y=style.top, width=right - left, height=height)
        rule = tag("line", x1=place, x2=place, y1=style.top, y2=style.top + height)
        parts.append(tag("g", tag("title", "\n".join(lines)), area, rule, *marks, class_="hit"))
    return join(parts)
