"""Pictures of a comparison as SVG files of their own, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from paw_train.reporting.compare.analysis import Comparison
from paw_train.reporting.compare.curves import MEASUREMENTS, RANGE_NOTE, charts_of
from paw_train.reporting.compare.results import RunResult
from paw_train.reporting.pages import render
from paw_train.reporting.run.charts import ChartStyle
from paw_train.reporting.run.scales import Axis, linear_ticks

_COLUMNS = 3
_CHART_ROW = 214
_ROW = 24.0


def curves_picture(baselines: Mapping[str, str], runs: Sequence[RunResult]) -> str | None:
    """Small charts of the first measurement that there is data for; ``None`` without any.

    Args:
        baselines: each arm and the one it is compared to.
        runs: the finished runs.
    """
    for measurement in MEASUREMENTS:
        style = ChartStyle(width=290, height=180, share=measurement.share)
        charts = charts_of(baselines, runs, measurement, style)
        if charts:
            return render(
                "curves.svg",
                label=measurement.title,
                note=RANGE_NOTE,
                charts=charts,
                columns=_COLUMNS,
                row=_CHART_ROW,
                height=60 + math.ceil(len(charts) / _COLUMNS) * _CHART_ROW,
            )
    return None


def forest_picture(comparison: Comparison) -> str:
    """Each arm's success with its interval, and its difference with its interval, a row an arm."""
    height = 92 + _ROW * len(comparison.arms)
    rates = [r for a in comparison.arms for r in (*a.rates, *(a.ci95 or ()))]
    ends = [v for d in comparison.differences for v in (*d.differences, *(d.ci95 or ()))]
    reach = min(1.0, 1.08 * max(0.02, *map(abs, ends or [0.1])))
    left = Axis(max(0.0, min(rates) - 0.03), min(1.0, max(rates) + 0.03), 190, 500)
    right = Axis(-reach, reach, 560, 880)
    return render(
        "differences.svg",
        label="Success of each arm and its difference",
        comparison=comparison,
        height=height,
        base=height - 34,
        row=_ROW,
        left=left,
        left_ticks=_ticks(left, lambda v: f"{100 * v:g}"),
        right=right,
        right_ticks=_ticks(right, lambda v: f"{100 * v:+g}" if v else "0"),
    )


def _ticks(axis: Axis, text: Callable[[float], str]) -> list[tuple[float, str]]:
    """(x, label)"""
    return [(axis.at(v), text(round(v, 6))) for v in linear_ticks(axis.low, axis.high, 5)]
