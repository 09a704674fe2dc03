"""Line charts as templates draw them: axes, ticks, intervals, smoothed lines, values on hover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear or logarithmic axis from ``low`` at ``start`` to ``high`` at ``end`` (pixels)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; a value beyond an end is placed at that end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def linear_ticks(low: float, high: float, target: int = 5, integer: bool = False) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high], about ``target`` of them."""
    raw = (high - low) / max(1, target)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    if integer:
        step = max(1.0, math.ceil(step))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step if i else 0.0 for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside [low, high]; on short axes also 2 and 5 times them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 150 else (1,)
    skip = 1 if len(powers) <= 7 else math.ceil(len(powers) / 6)
    ticks = [m * 10.0**p for p in powers[::skip] for m in factors]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]


def value_axis(
    values: Sequence[float], start: float, end: float, share: bool = False, log: bool = False
) -> Axis:
    """An axis that holds ``values`` with some margin, and 0 if that costs little resolution.

    It spans at least a tenth of the largest value (for shares, 0.1), so that noise looks small.
    """
    low, high = min(values), max(values)
    if log:
        return Axis(low / 1.3, high * 1.3, start, end, log=True)
    if low == high == 0:
        return Axis(0.0, 1.0, start, end)
    if share and low >= 0:
        return Axis(0.0, min(1.0, max(0.1, high * 1.1)) if high <= 1 else high, start, end)
    if low >= 0 and low < 0.6 * high:
        return Axis(0.0, high * 1.08, start, end)
    least = 0.1 * max(abs(low), abs(high))
    air = max(0.08 * (high - low), (least - (high - low)) / 2)
    return Axis(low - air, high + air, start, end)


def number_text(value: float, share: bool = False, digits: int = 3) -> str:
    """A number for a label: significant digits, ``k`` and ``M``, or percent."""
    if share:
        return f"{100 * value:.1f}".removesuffix(".0") + " %"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.{digits}g}M"
    if size >= 1e4:
        return f"{value / 1e3:.{digits}g}k"
    if size >= 1000:
        return f"{value:.0f}"
    if size < 1e-3 and value:
        return f"{value:.2e}".replace(".00e", "e").replace("e-0", "e-")
    return f"{value:.{digits}g}"


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: ``48 s``, ``12 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


MAX_POINTS = 400
"""points shown of one line; longer ones are averaged in buckets"""
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
    """add a running mean if the line is long"""
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) by rising x: an area behind the line"""

    @property
    def values(self) -> list[float]:
        return [y for _, y in self.points if y is not None]

    @property
    def reach(self) -> list[float]:
        """Everything that the y axis has to hold: the values, and the ends of intervals and of the band."""
        return [*self.values, *(end for _, *ends in (*self.intervals, *self.band) for end in ends)]


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """Size (in pixels of the view box) and kind of the y axis."""

    width: float = 380
    height: float = 208
    share: bool = False
    log: bool = False
    """logarithmic if the values allow and need it"""
    x_label: str = "update"
    holds: Sequence[float] = ()
    """values that the y axis holds in addition to the series', so that several charts can be compared"""
    left: float = 46
    right: float = 10
    top: float = 10
    bottom: float = 34


class Chart:
    """A line chart in pixels of its view box."""

    def __init__(self, series: Sequence[Series], style: ChartStyle) -> None:
        self.style = style
        self.series = [s for s in map(_shortened, series) if s.values]
        self.x, self.y = _axes(self.series, style)

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        low, high = self.y.low, self.y.high
        ticks = log_ticks(low, high) if self.y.log else linear_ticks(low, high, 4)
        # an axis spans a tenth of its largest value or more: four digits tell neighbours apart
        return [(self.y.at(v), number_text(v, self.style.share, 4)) for v in ticks]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        ticks = linear_ticks(self.x.low, self.x.high, 6, integer=True)
        return [(self.x.at(value), f"{value:g}") for value in ticks]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Each series in pixels: paths of the line, its running mean and its band; whiskers and dots."""
        return [self._line(series) for series in self.series]

    def _line(self, series: Series) -> dict[str, Any]:
        x_at, y_at = self.x.at, self.y.at
        window, smoothed = running_mean(series.points) if series.smooth else (1, [])
        few = window == 1 and len(series.points) <= _DOTS_UP_TO
        return {
            "colour": series.colour,
            "path": self._path(series.points),
            "smoothed": self._path(smoothed) if window > 1 else "",
            "band": self._area(series.band) if series.band else "",
            "whiskers": [(x_at(x), y_at(low), y_at(high)) for x, low, high in series.intervals],
            "dots": [(x_at(x), y_at(y)) for x, y in series.points if few and y is not None],
        }

    @property
    def strips(self) -> list[dict[str, Any]]:
        """Positions side by side over the whole chart that show their values on hover."""
        xs = sorted({x for s in self.series for x, y in s.points if y is not None})
        xs = xs[:: math.ceil(len(xs) / MAX_STRIPS)]
        places = [self.x.at(x) for x in xs]
        between = ((a + b) / 2 for a, b in pairwise(places))
        edges = [self.style.left, *between, self.style.width - self.style.right]
        values = [{x: y for x, y in s.points if y is not None} for s in self.series]
        strips = []
        for x, place, (left, right) in zip(xs, places, pairwise(edges), strict=True):
            here = [(s, v[x]) for s, v in zip(self.series, values, strict=True) if x in v]
            lines = [f"{self.style.x_label} {x:g}", *(self._value(s, x, y) for s, y in here)]
            marks = [(self.y.at(y), s.colour) for s, y in here]
            text = "\n".join(lines)
            strips.append({"x": place, "left": left, "right": right, "text": text, "marks": marks})
        return strips

    def _value(self, series: Series, x: float, y: float) -> str:
        share = self.style.share
        text = f"{series.label}: {number_text(y, share)}"
        for low, high in [ends for at, *ends in series.intervals if at == x]:
            text += f" [{number_text(low, share)}, {number_text(high, share)}]"
        return text

    def _area(self, band: Sequence[tuple[float, float, float]]) -> str:
        upper = [f"{self.x.at(x):.1f} {self.y.at(high):.1f}" for x, _, high in band]
        lower = [f"{self.x.at(x):.1f} {self.y.at(low):.1f}" for x, low, _ in reversed(band)]
        return f"M{'L'.join([*upper, *lower])}Z"

    def _path(self, points: Sequence[Point]) -> str:
        """The ``d`` of a path; a single point between gaps becomes a dot (round caps)."""
        out: list[str] = []
        pen_down = False
        for i, (x, y) in enumerate(points):
            if y is None:
                pen_down = False
                continue
            out.append(f"{'L' if pen_down else 'M'}{self.x.at(x):.1f} {self.y.at(y):.1f}")
            alone = not pen_down and (i + 1 == len(points) or points[i + 1][1] is None)
            out += ["h0"] if alone else []
            pen_down = True
        return "".join(out)


def smoothing_window(count: int) -> int:
    """Neighbours that a smoothed line of ``count`` points averages over: odd; 1 for short lines."""
    count = min(count, MAX_POINTS)
    return 2 * max(1, round(count / 20)) + 1 if count >= 16 else 1


def running_mean(points: Sequence[Point]) -> tuple[int, list[Point]]:
    """(window, centred mean over ``window`` neighbours); near the ends, over as many as both sides allow.

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
        parts = [points[i : i + size] for i in range(0, len(points), size)]
        known = [[y for _, y in part if y is not None] for part in parts]
        means = (sum(values) / len(values) if values else None for values in known)
        points = [(part[-1][0], mean) for part, mean in zip(parts, means, strict=True)]
    return replace(series, points=points)


def _axes(series: Sequence[Series], style: ChartStyle) -> tuple[Axis, Axis]:
    xs = [x for s in series for x, y in s.points if y is not None]
    low, high = min(xs), max(xs)
    if low == high:
        low, high = low - 1, high + 1
    x_axis = Axis(low, high, style.left + 4, style.width - style.right - 4)
    ys = [*(y for s in series for y in s.reach), *style.holds]
    start, end = style.height - style.bottom, style.top
    log = style.log and min(ys) > 0 and max(ys) > 30 * min(ys)
    return x_axis, value_axis(ys, start, end, style.share, log)
