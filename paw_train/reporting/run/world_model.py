"""Quality of the world model on held-out transitions, by stage of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_train.reporting.run.results import number

STAGES = {"start": "start policy", "learned": "after learning it", "trained": "after policy RL"}
"""files of ``world_model/`` in a run's folder, in order"""
COLUMNS = ("similarity", "exact match", "token accuracy", "NLL per token")
_KEYS = (
    ("similarity", 1.0, ""),
    ("exact_match", 100.0, " %"),
    ("token_accuracy", 100.0, " %"),
    ("nll_per_token", 1.0, ""),
)


def world_model_rows(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each stage that was measured: its name, then the columns."""
    return [
        [label, *(_cell(found[when].get(key), scale, unit) for key, scale, unit in _KEYS)]
        for when, label in STAGES.items()
        if found.get(when)
    ]


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
