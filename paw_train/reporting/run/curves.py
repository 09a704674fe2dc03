"""The measurements that a report plots, how, and what each one means, as ``report.js`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from paw_train.metrics import CATALOGUE, METRICS, NOT_MEASURED, Metric, number
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
_COLOURS = 8
"""of the style sheet"""
_SMOOTHED = 400
"""updates from which a smoothed line is not smoothed any further"""


def chart_sections(run: RunData) -> list[dict[str, Any]]:
    """The charts for which a run has data, by heading."""
    updates = {
        **SECTIONS,
        "By environment": _by_environment(run.metrics),
        "Other measurements": _others(run.metrics),
    }
    found = [_section(title, curves, run.metrics, "update") for title, curves in updates.items()]
    for chart in (chart for section in found for chart in section["charts"]):
        if chart["name"] == "success_rate":
            chart["series"][0]["checks"] = _checks(run.validation)
    learning, warm = run.world_model_learning, run.warmstart
    title = "World-model learning before RL"
    found.append(_section(title, _WORLD_MODEL_LEARNING, learning, "update"))
    found.append(_section("Warm start", _WARM_START, warm, "step"))
    return [section for section in found if section["charts"]]


def _checks(validation: Sequence[Record]) -> list[dict[str, Any]]:
    """Success on the selection panel, by number of finished updates."""
    rates = [(record["update"], rate) for record in validation if (rate := Rate.found(record))]
    return [
        {"update": at, "success_rate": rate.rate, "ci95": [rate.low, rate.high]}
        for at, rate in rates
    ]


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
    plotted = [key for key in others if _values(records, key)]
    return [Curve(key, "", ((key, key),)) for key in plotted[:_MAX_OTHERS]]


def _section(
    title: str, curves: Sequence[Curve], records: Sequence[Record], across: str
) -> dict[str, Any]:
    count = len(records)
    charts = [_chart_of(curve, records) for curve in curves]
    return {
        "title": title,
        "across": across,
        "x": [record[across] for record in records],
        "smoothing": 2 * max(1, round(min(count, _SMOOTHED) / 20)) + 1 if count >= 16 else 1,
        "charts": [chart for chart in charts if chart["series"]],
    }


def _chart_of(curve: Curve, records: Sequence[Record]) -> dict[str, Any]:
    series = [
        {"label": label, "colour": i % _COLOURS, "values": values}
        for i, (key, label) in enumerate(curve.keys)
        if (values := _values(records, key))
    ]
    return {
        "name": curve.keys[0][0],
        "title": curve.title,
        "meaning": curve.note,
        "unit": "share" if curve.share else "",
        "log": curve.log,
        "series": series,
    }


def _values(records: Sequence[Record], key: str) -> list[float | None]:
    """One for each record, in six digits; none at all if no record has a number there."""
    found = [number(record.get(key)) for record in records]
    if not any(value is not None for value in found):
        return []
    return [None if value is None else float(f"{value:.6g}") for value in found]
