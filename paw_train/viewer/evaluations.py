"""The fields of an evaluation's ``result.json`` for its page, each only if it is usable.

Unknown fields are listed all the same, so that a result of a newer version loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_train.metrics import number
from paw_train.reporting.run.data import Rate
from paw_train.settings.endpoint import money

Record = dict[str, Any]

_SHOWN = {
    *("agent", "model", "panel", "env_id", "n", "success_rate", "ci95", "score", "by_type"),
    *("averages", "pass_at_k", "runs", "successes", "cost", "tokens", "agent_settings", "sampling"),
    *("settings", "environment", "endpoint"),
}
"""fields with a place of their own on the page"""
_DETAILS = ("agent_settings", "sampling", "endpoint", "environment", "settings")
"""objects that are folded away, in this order"""


def evaluation_of(result: Mapping[str, Any]) -> Record:
    """The page of an evaluation as JSON values; what the result lacks is ``None`` or empty.

    Keys: ``agent``, ``model``, ``panel``, ``env`` (texts); ``overall`` (``n``, ``success_rate``,
    ``ci95``; ``None`` without an episode); ``score`` (``mean``, ``ci95``) where it differs from
    success; ``types`` and ``averages`` (rates with ``name``); ``pass_at_k``; ``runs`` (``seed``,
    ``success_rate``); ``cost`` (a text); ``tokens`` (``prompt``, ``completion``); ``measured`` (other
    numbers and texts by their name in the file); ``details`` (objects by name).
    """
    overall = _rate(result)
    return {
        "agent": _text(result.get("agent")),
        "model": _text(result.get("model")),
        "panel": _text(result.get("panel")),
        "env": _text(result.get("env_id")),
        "overall": overall,
        "score": _score(result.get("score"), overall),
        "types": _rates(result.get("by_type")),
        "averages": _rates(result.get("averages")),
        "pass_at_k": _means(result.get("pass_at_k")),
        "runs": _runs(result.get("runs")),
        "cost": None if (cost := number(result.get("cost"))) is None else money(cost),
        "tokens": _tokens(result.get("tokens")),
        "measured": {
            key: value
            for key, value in result.items()
            if key not in _SHOWN and _plain(value) and value != ""
        },
        "details": {
            name: value
            for name in (*_DETAILS, *sorted(set(result) - _SHOWN))
            if isinstance(value := result.get(name), dict) and value
        },
    }


def settings_of(result: Mapping[str, Any]) -> Record:
    """The settings of an evaluation, to be compared with another's."""
    named = {key: result[key] for key in ("agent", "model", "panel") if _plain(result.get(key))}
    for key in ("agent_settings", "sampling"):
        if isinstance(result.get(key), dict):
            named[key] = result[key]
    settings = result.get("settings")
    return {**named, **(settings if isinstance(settings, dict) else {})}


def _rate(value: Any) -> Record | None:
    try:
        rate = Rate.from_dict(value)
    except (ValueError, AttributeError, TypeError):
        return None
    return {"n": rate.n, "success_rate": rate.rate, "ci95": [rate.low, rate.high]}


def _rates(value: Any) -> list[Record]:
    if not isinstance(value, dict):
        return []
    return [{"name": name, **rate} for name, data in value.items() if (rate := _rate(data))]


def _score(value: Any, overall: Mapping[str, Any] | None) -> Record | None:
    mean = number(value.get("mean")) if isinstance(value, dict) else None
    if mean is None or (overall and abs(mean - overall["success_rate"]) < 1e-9):
        return None
    ends = value.get("ci95")
    usable = isinstance(ends, list) and len(ends) == 2 and None not in map(number, ends)
    return {"mean": mean, "ci95": ends if usable else None}


def _means(value: Any) -> Record:
    if not isinstance(value, dict):
        return {}
    found = {k: number(part.get("mean")) for k, part in value.items() if isinstance(part, dict)}
    return {k: mean for k, mean in found.items() if mean is not None}


def _runs(value: Any) -> list[Record]:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return [
        {"seed": number(row.get("seed")), "success_rate": number(row.get("success_rate"))}
        for row in rows
    ]


def _tokens(value: Any) -> Record | None:
    if not isinstance(value, dict):
        return None
    found = {name: number(value.get(name)) for name in ("prompt", "completion")}
    return found if any(found.values()) else None


def _plain(value: Any) -> bool:
    return isinstance(value, str | bool) or number(value) is not None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
