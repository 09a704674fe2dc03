"""The measurements that a report plots, how, and what each one means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from paw_gym.internals.printable import counted
from paw_train.metrics import CATALOGUE, METRICS, NOT_MEASURED, Metric, number
from paw_train.reporting.charts import Chart, ChartStyle, Series, smoothing_window
from paw_train.reporting.run.data import Rate, Record, RunData


@dataclass(frozen=True, slots=True)
class Curve:
    """One chart: the keys of a record that it shows, with their labels."""

    title: str
    note: str
    keys: tuple[tuple[str, str], ...]
    share: bool = False
    log: bool = False


def _chart(title: str, metrics: Sequence[Metric]) -> Curve:
    first = metrics[0]
    texts = [f"{m.title}: {m.meaning}" if len(metrics) > 1 else m.meaning for m in metrics]
    unit = f" ({first.unit})" if first.unit not in ("", "share") else ""
    keys = tuple((m.name, m.title) for m in metrics)
    return Curve(title, "; ".join(texts) + unit, keys, first.unit == "share", first.log)


SECTIONS = {
    title: [_chart(name, [*own]) for name, own in groupby(metrics, attrgetter("chart"))]
    for title, metrics in CATALOGUE.items()
}
"""the charts of the catalogue's measurements, by heading"""
_WARM_START = (
    Curve("Cloning loss", "next-token loss on the expert's episodes", (("loss", "loss"),)),
    Curve(
        "Action accuracy",
        "tokens of the expert's responses predicted right",
        (("action_accuracy", "accuracy"),),
        share=True,
    ),
)
_WORLD_MODEL_LEARNING = (
    Curve(
        "Right predictions",
        "of the sampled ones: within the threshold, and word for word",
        (("right_share", "right"), ("exact_share", "exact")),
        share=True,
    ),
    Curve(
        "Similarity",
        "cosine of sampled prediction and realised observation",
        (("similarity", "cosine"),),
    ),
    Curve(
        "Informative groups",
        "transitions whose predictions differ in reward",
        (("informative_share", "informative"),),
        share=True,
    ),
    Curve(
        "Complete and different",
        "predictions that end by themselves; different texts among them",
        (("complete_share", "complete"), ("different_share", "different")),
        share=True,
    ),
    Curve(
        "Observation NLL",
        "nats per token of the observations learned from (WM-SFT)",
        (("nll_per_token", "NLL"),),
    ),
    Curve("KL", "to the start policy", (("kl", "KL"),)),
)
_MAX_OTHERS = 24


def chart_sections(run: RunData) -> list[dict[str, Any]]:
    """The charts for which a run has data, as ``run.html`` reads them."""
    updates = {
        **SECTIONS,
        "By environment": _by_environment(run.metrics),
        "Other measurements": _others(run.metrics),
    }
    found = [
        _section(title, curves, run.metrics, "update", run) for title, curves in updates.items()
    ]
    learning, warm = run.world_model_learning, run.warmstart
    title = "World-model learning before RL"
    found.append(_section(title, _WORLD_MODEL_LEARNING, learning, "update", run))
    found.append(_section("Warm start", _WARM_START, warm, "step", run))
    return [section for section in found if section["charts"]]


def success_series(run: RunData) -> list[Series]:
    """Success in training rollouts and on the selection panel, by number of finished updates."""
    points = _points(run.metrics, "success_rate", "update")
    series = [Series("training rollouts", points, 1, (), True)]
    rates = [(float(r["update"]), rate) for r in run.validation if (rate := Rate.found(r))]
    if rates:
        points = [(x, rate.rate) for x, rate in rates]
        intervals = [(x, rate.low, rate.high) for x, rate in rates]
        label = f"validation ({counted(rates[-1][1].n, 'task')})"
        series.append(Series(label, points, 2, intervals))
    return [s for s in series if s.values]


def _by_environment(records: Sequence[Record]) -> list[Curve]:
    """Measurements by environment, for runs with several (``metric/environment``): one chart per metric."""
    keys = sorted({key for record in records for key in record if "/" in key})
    charts = []
    for name, metric in METRICS.items():
        own = tuple((k, k.partition("/")[2]) for k in keys if k.startswith(f"{name}/"))
        if own:
            share = metric.unit == "share"
            charts.append(Curve(metric.heading, metric.meaning, own, share, metric.log))
    return charts


def _others(records: Sequence[Record]) -> list[Curve]:
    """Measurements that are not in the catalogue but are plotted as well."""
    recorded = sorted({key for record in records for key in record} - NOT_MEASURED)
    others = (key for key in recorded if key.partition("/")[0] not in METRICS)
    plotted = [key for key in others if _has(records, key)][:_MAX_OTHERS]
    return [Curve(key, "", ((key, key),)) for key in plotted]


def _section(
    title: str, curves: Sequence[Curve], records: Sequence[Record], x_key: str, run: RunData
) -> dict[str, Any]:
    found = [(curve, _series(curve, records, x_key, run)) for curve in curves]
    found = [(curve, series) for curve, series in found if series]
    wide = len(found) in (1, 2, 4)  # few enough to be larger
    width, height = (440, 226) if wide else (380, 208)
    charts = [
        (curve, Chart(series, ChartStyle(width, height, curve.share, curve.log, x_key)))
        for curve, series in found
    ]
    window = smoothing_window(len(records))
    smoothing = f"Thin lines: each {x_key}; thick lines: mean of {window} neighbours."
    return {
        "title": title,
        "charts": charts,
        "wide": wide,
        "smoothing": smoothing if window > 1 else "",
    }


def _series(curve: Curve, records: Sequence[Record], x_key: str, run: RunData) -> list[Series]:
    if curve.keys[0][0] == "success_rate":
        return success_series(run)
    return [
        Series(label, _points(records, key, x_key), i, (), True)
        for i, (key, label) in enumerate(curve.keys, 1)
        if _has(records, key)
    ]


def _has(records: Sequence[Record], key: str) -> bool:
    return any(number(record.get(key)) is not None for record in records)


def _points(records: Sequence[Record], key: str, x_key: str) -> list[tuple[float, float | None]]:
    return [(float(r[x_key]), number(r.get(key))) for r in records]
