"""Positions, ticks and labels of a plot's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear or logarithmic axis from ``low`` at ``start`` to ``high`` at ``end`` (pixels)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; values beyond the ends stay at the end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    @property
    def middle(self) -> float:
        """The pixel halfway between the ends."""
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
    """An axis that holds ``values`` with some air, and 0 where that costs little resolution.

    It spans at least a tenth of the largest value (of shares, 0.1), so that noise looks small.

    Args:
        values: finite numbers, at least one.
        start: pixel of the low end.
        end: pixel of the high end.
        share: the values are fractions: start at 0, end at 1 at most.
        log: logarithmic; needs positive values.
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


def number_text(value: float, share: bool = False) -> str:
    """A number for a label: three significant digits, ``k`` and ``M``, or percent."""
    if share:
        return f"{100 * value:.1f}".removesuffix(".0") + " %"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size >= 1000:
        return f"{value:.0f}"
    if size < 1e-3 and value:
        return f"{value:.2e}".replace(".00e", "e").replace("e-0", "e-")
    return f"{value:.3g}"


def tick_labels(ticks: Sequence[float], share: bool = False) -> list[str]:
    """A label for each tick, with as many digits as make neighbours differ."""
    labels = [number_text(value, share) for value in ticks]
    if len(set(labels)) == len(labels):
        return labels
    scaled = [100 * value if share else value for value in ticks]
    step = min(b - a for a, b in pairwise(scaled))
    digits = next(
        d for d in range(16) if all(abs(round(v, d) - v) < 0.01 * step for v in scaled) or d == 15
    )
    return [f"{value:.{digits}f}" + (" %" if share else "") for value in scaled]


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: ``48 s``, ``12 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
