"""Learning curves of a comparison: each arm beside its baseline, with mean and range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paw_train.reporting.compare.results import RunResult
from paw_train.reporting.run.charts import Chart, ChartStyle, Series


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement that is shown as curves."""

    key: str
    title: str
    share: bool = False


MEASUREMENTS = (
    Measurement("validation", "Success on the selection panel", share=True),
    Measurement("success_rate", "Success in training rollouts", share=True),
    Measurement("obs_nll", "Observation NLL, nats per token"),
    Measurement("invalid_rate", "Invalid responses", share=True),
)
RANGE_NOTE = (
    "Lines: mean over the seeds that both arms have; areas: from the lowest to the highest seed."
)


def arm_series(
    arm: str, runs: Sequence[RunResult], measurement: Measurement, colour: int
) -> Series | None:
    """The mean of a measurement over an arm's seeds, with their range; ``None`` where there is none."""
    lines = [points for c in runs if c.arm == arm and (points := _points(c, measurement.key))]
    if not lines:
        return None
    xs = sorted({x for line in lines for x in line})
    known = {x: [line[x] for line in lines if x in line] for x in xs}
    return Series(
        arm,
        [(x, float(np.mean(known[x]))) for x in xs],
        colour,
        band=[(x, min(known[x]), max(known[x])) for x in xs] if len(lines) > 1 else (),
    )


def pairs(
    baselines: Mapping[str, str], runs: Sequence[RunResult], measurement: Measurement
) -> list[tuple[str, list[Series]]]:
    """For each arm, its curve and its baseline's: (arm, series), over the seeds that both have.

    Without a seed in common the arm's curve stands alone.
    """
    seeds = {arm: {c.seed for c in runs if c.arm == arm} for arm in baselines}
    charts = []
    for arm, other in baselines.items():
        if arm == other:
            continue
        common = seeds[arm] & seeds[other]
        shared = [c for c in runs if c.seed in (common or seeds[arm])]
        own = arm_series(arm, shared, measurement, 1)
        base = arm_series(other, shared, measurement, 2)
        if own is not None:
            charts.append((arm, [s for s in (base, own) if s is not None]))
    return charts


def charts_of(
    baselines: Mapping[str, str],
    runs: Sequence[RunResult],
    measurement: Measurement,
    style: ChartStyle,
) -> list[tuple[str, Chart]]:
    """(arm, chart) of every arm that the measurement was recorded for, all on one y axis; see ``pairs``."""
    found = pairs(baselines, runs, measurement)
    common = replace(style, holds=[y for _, series in found for line in series for y in line.reach])
    return [(arm, Chart(series, common)) for arm, series in found]


def _points(run: RunResult, key: str) -> dict[float, float]:
    """Value by number of finished updates."""
    if key == "validation":
        return {float(update): rate for update, rate, *_ in run.validation}
    values = run.metrics.get(key, [])
    return {float(i): v for i, v in enumerate(values, 1) if v is not None}
