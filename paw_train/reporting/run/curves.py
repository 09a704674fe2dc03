"""A run's measurements as curves, for the report and for the viewer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from paw_train.metrics import METRICS, NOT_MEASURED, Metric, number
from paw_train.reporting.run.data import Rate, Record, RunData

_STAGES = (
    Metric("loss", "Cloning loss", "next-token loss on the expert's episodes"),
    Metric("action_accuracy", "Action accuracy", "expert's tokens predicted right", "share"),
    Metric("right_share", "Right predictions", "within the threshold", "share", "right"),
    Metric("exact_share", "Right predictions", "word for word", "share", "exact"),
    Metric("similarity", "Similarity", "cosine of sampled prediction and realised observation"),
    Metric("informative_share", "Informative groups", "predictions differ in reward", "share"),
    Metric("complete_share", "Complete and different", "ended by themselves", "share", "complete"),
    Metric("different_share", "Complete and different", "different texts", "share", "different"),
    Metric("nll_per_token", "Observation NLL", "nats per token learned from (WM-SFT)"),
    Metric("kl", "KL", "to the start policy", "nats"),
)
"""measurements of the warm start and of world-model learning before RL"""
_COLOURS = 8
"""of the style sheet"""
_SMOOTHED = 400
"""updates from which a smoothed line is not smoothed any further"""


def measured(records: Iterable[Record]) -> list[str]:
    """The names of what some record has a number for, but for those that are not measurements."""
    names = dict.fromkeys(k for r in records for k, value in r.items() if number(value) is not None)
    return [name for name in names if name not in NOT_MEASURED]


def described(
    names: Collection[str], catalogue: Mapping[str, Metric] = METRICS
) -> list[dict[str, Any]]:
    """How measurements are shown: first those of the catalogue, in its order."""
    known = [name for name in catalogue if name in names]
    return [_shown(n, catalogue) for n in (*known, *(n for n in names if n not in catalogue))]


def _shown(name: str, catalogue: Mapping[str, Metric]) -> dict[str, Any]:
    kind, _, environment = name.partition("/")
    if (metric := catalogue.get(kind)) is None:
        metric, environment = Metric(name, name, ""), ""
    return {
        "name": name,
        "title": f"{metric.heading}, {environment}" if environment else metric.heading,
        "section": "By environment" if environment else metric.section,
        "chart": metric.heading if environment else metric.chart,
        "label": environment or metric.title,
        "meaning": metric.meaning,
        "unit": metric.unit,
        "log": metric.log,
    }


def chart_sections(run: RunData) -> list[dict[str, Any]]:
    """The charts for which a run has data, by heading, as ``report.js`` reads them."""
    found = _sections("", "update", run.metrics, described(measured(run.metrics)))
    for chart in (chart for section in found for chart in section["charts"]):
        if chart["name"] == "success_rate":
            chart["series"][0]["checks"] = _checks(run.validation)
    stages = {metric.name: metric for metric in _STAGES}
    for title, across, records in (
        ("World-model learning before RL", "update", run.world_model_learning),
        ("Warm start", "step", run.warmstart),
    ):
        names = [name for name in measured(records) if name in stages]
        found += _sections(title, across, records, described(names, stages))
    return found


def _checks(validation: Sequence[Record]) -> list[dict[str, Any]]:
    """Success on the selection panel, by number of finished updates."""
    rates = [(record["update"], rate) for record in validation if (rate := Rate.found(record))]
    return [
        {"update": at, "success_rate": rate.rate, "ci95": [rate.low, rate.high]}
        for at, rate in rates
    ]


def _sections(
    title: str, across: str, records: Sequence[Record], metrics: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The charts of some measurements, by their own headings or under ``title``."""
    sections: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for metric in metrics:
        charts = sections.setdefault(title or metric["section"], {})
        charts.setdefault(metric["chart"], []).append(metric)
    count = len(records)
    shared = {
        "across": across,
        "x": [record[across] for record in records],
        "smoothing": 2 * max(1, round(min(count, _SMOOTHED) / 20)) + 1 if count >= 16 else 1,
    }
    return [
        {"title": heading, **shared, "charts": [_chart(*own, records) for own in charts.items()]}
        for heading, charts in sections.items()
    ]


def _chart(
    title: str, metrics: Sequence[Mapping[str, Any]], records: Sequence[Record]
) -> dict[str, Any]:
    first = metrics[0]
    meanings = list(dict.fromkeys(metric["meaning"] for metric in metrics))
    if len(meanings) > 1:
        meanings = [f"{metric['label']}: {metric['meaning']}" for metric in metrics]
    unit = f" ({first['unit']})" if first["unit"] not in ("", "share") else ""
    series = [
        {
            "label": metric["label"],
            "colour": i % _COLOURS,
            "values": _values(records, metric["name"]),
        }
        for i, metric in enumerate(metrics)
    ]
    return {**first, "title": title, "meaning": "; ".join(meanings) + unit, "series": series}


def _values(records: Sequence[Record], key: str) -> list[float | None]:
    """In six digits, which is enough for a chart."""
    found = [number(record.get(key)) for record in records]
    return [None if value is None else float(f"{value:.6g}") for value in found]
