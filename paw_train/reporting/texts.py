"""Numbers and durations as texts of a page or a terminal."""

from __future__ import annotations


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


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: ``48 s``, ``12 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
