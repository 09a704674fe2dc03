"""The table of a report on what world-model learning taught, where a run measured it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_train.reporting.run.markup import Markup, tag
from paw_train.reporting.run.results import number

STAGES = {"start": "start policy", "learned": "after learning it", "trained": "after policy RL"}
"""files of ``world_model/`` in a run's folder, in order"""
_COLUMNS = (
    ("similarity", "similarity", 1.0, ""),
    ("exact_match", "exact match", 100.0, " %"),
    ("token_accuracy", "token accuracy", 100.0, " %"),
    ("nll_per_token", "NLL a token", 1.0, ""),
)


def world_model_table(found: Mapping[str, dict[str, Any]]) -> Markup:
    """Measurements on held-out transitions by stage; empty without any."""
    rows = [
        tag(
            "tr",
            tag("th", label, scope="row"),
            *(
                tag("td", _cell(found[when].get(key), scale, unit), class_="num")
                for key, _, scale, unit in _COLUMNS
            ),
        )
        for when, label in STAGES.items()
        if found.get(when)
    ]
    if not rows:
        return Markup()
    head = tag("tr", tag("th", ""), *(tag("th", name, scope="col") for _, name, _, _ in _COLUMNS))
    first = next(iter(found.values()))
    note = (
        f"Next-observation prediction on {first.get('transitions')} held-out transitions of "
        f"{first.get('episodes')} episodes that the start policy played (encoder: {first.get('encoder')}); "
        "in brackets 95 % over episodes."
    )
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="small")
    return tag(
        "section",
        tag("h2", "World model on held-out transitions"),
        table,
        tag("p", note, class_="muted"),
    )


def _cell(value: Any, scale: float, unit: str) -> str:
    mean = number(value.get("mean")) if isinstance(value, dict) else None
    if mean is None:
        return "–"
    digits = 1 if unit else 3
    ends = value.get("ci95")
    text = f"{scale * mean:.{digits}f}{unit}"
    if not isinstance(ends, list) or len(ends) != 2 or None in map(number, ends):
        return text
    return f"{text} [{scale * ends[0]:.{digits}f}, {scale * ends[1]:.{digits}f}]"
