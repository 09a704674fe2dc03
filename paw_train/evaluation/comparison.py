"""Two results on the same tasks, compared task by task; or why they cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paw_train.evaluation.statistics import (
    crossed_difference_interval,
    difference_interval,
    paired_difference,
    sign_flip_p_value,
    wilson_interval,
)

_SEED = 0
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``second - first`` on one panel."""

    n: int
    """tasks"""
    rates: tuple[float, float]
    difference: float
    ci95: tuple[float, float]
    """bootstrap over tasks, resampled as pairs; over the seeds too where there are several"""
    p_value: float
    test: str
    """McNemar's, or random signs of the tasks' mean differences"""
    improved: int
    """tasks that the second solves more often"""
    worsened: int
    by_type: dict[str, float]
    """difference of the success rates by task type"""
    score_difference: tuple[float, float, float] | None
    """difference of the mean scores with its interval, where scores are not just success"""
    notes: tuple[str, ...]
    """what else differs between the two"""


def load_result(path: str | Path) -> dict[str, Any]:
    """A result from its file, or from the folder that holds ``result.json``.

    Raises:
        ValueError: there is none, or it is damaged or of another kind.
    """
    path = Path(path)
    file = path / "result.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"There is no result {str(file)!r}; `paw eval` writes one.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no result of `paw eval`: {error}") from None
    missing = {"panel", "panel_hash", "env_id", "n", "runs"} - set(
        data if isinstance(data, dict) else ()
    )
    if missing:
        raise ValueError(
            f"{file} is no result of `paw eval`, or one of an older version: it lacks "
            f"{', '.join(sorted(missing))}. Evaluate again."
        )
    # older results have it under another name
    return {"privileged": data.get("told", ""), **data}


def reasons_against(first: Result, second: Result) -> list[str]:
    """Why two results cannot be compared; empty: they can. Of different panels nothing else is said."""
    if first["env_id"] != second["env_id"]:
        return [f"other environments: {first['env_id']} and {second['env_id']}"]
    reasons = environments_differ(first.get("environment"), second.get("environment"))
    if first["panel_hash"] != second["panel_hash"]:
        other = (
            f"other tasks: panel {first['panel']} ({first['panel_hash'][:12]}) and "
            f"{second['panel']} ({second['panel_hash'][:12]})"
        )
        return [other, *(reasons if first["panel"] == second["panel"] else [])]
    for name, result in (("first", first), ("second", second)):
        if result.get("errors"):
            reasons.append(
                f"{result['errors']} episodes of the {name} failed by an error and were not measured; "
                "the same `paw eval` runs these again"
            )
        elif not result.get("complete", True):
            reasons.append(
                f"only {result['n']} of {result['tasks']} tasks of the {name} were run "
                f"({result.get('stopped') or 'stopped'}); the same `paw eval` goes on"
            )
    return reasons


def environments_differ(first: Result | None, second: Result | None) -> list[str]:
    """Why what two results record of their environment forbids comparing them; empty: nothing does."""
    if first is None and second is None:
        return []
    if first is None or second is None:
        which = "first" if first is None else "second"
        return [f"the {which} has no record of its environment (made by training, not `paw eval`?)"]
    if first["id"] != second["id"]:
        return []
    known = _shared_arguments(first, second)
    a, b = first["arguments"], second["arguments"]
    reasons = [
        f"other environment settings: {key}={a.get(key)!r} and {key}={b.get(key)!r}"
        for key in known
        if a.get(key) != b.get(key)
    ]
    if first["tasks"] == second["tasks"] and first["behaviour"] != second["behaviour"]:
        reasons.append(
            "the environment answers otherwise to the same actions "
            f"({_short(first['behaviour'])} and {_short(second['behaviour'])}): another version of the "
            "program, its data or its search engine"
        )
    return reasons


def _shared_arguments(first: Result, second: Result) -> list[str]:
    """Arguments in which the environments of two results have to agree.

    One that a single result knows was added to the program between them. It makes no difference where the
    tasks and the answers to the same actions are equal.
    """
    a, b = first["arguments"], second["arguments"]
    recorded = first["behaviour"] is not None
    alike = all(first[key] == second[key] for key in ("tasks", "behaviour"))
    return sorted({*a} & {*b} if recorded and alike else {*a, *b})


def _short(text: str | None) -> str:
    return "not recorded" if text is None else text[:12]


def compare(first: Result, second: Result) -> Comparison:
    """Compares two results task by task.

    Args:
        first: contents of a ``result.json``: the baseline.
        second: of another one.

    Raises:
        ValueError: they cannot be compared; names every reason.
    """
    reasons = reasons_against(first, second)
    if reasons:
        raise ValueError("These results cannot be compared: " + "; ".join(reasons) + ".")
    a, b = successes(first), successes(second)
    if len(a) == len(b) == 1:
        paired = paired_difference(a[0], b[0], _SEED)
        interval, test = paired.ci95, "McNemar, exact"
        p_value = 1.0 if paired.p_value is None else paired.p_value
    else:
        interval = crossed_difference_interval(a, b, _SEED)
        test = "random signs of the tasks' mean differences"
        p_value = sign_flip_p_value((np.mean(b, 0) - np.mean(a, 0)).tolist(), _SEED)
    delta = np.mean(b, 0) - np.mean(a, 0)
    if np.ptp(delta) == 0:
        # a bootstrap of equal values knows no uncertainty
        rates = [
            (rate, *wilson_interval(rate * len(delta), len(delta)))
            for rate in (float(np.mean(a)), float(np.mean(b)))
        ]
        interval = difference_interval(rates[0], rates[1])
    return Comparison(
        n=len(delta),
        rates=(float(np.mean(a)), float(np.mean(b))),
        difference=float(delta.mean()),
        ci95=interval,
        p_value=p_value,
        test=test,
        improved=int((delta > 0).sum()),
        worsened=int((delta < 0).sum()),
        by_type=_by_type(first, second),
        score_difference=_score_difference(first, second),
        notes=_notes(first, second),
    )


def successes(result: Result) -> list[list[float]]:
    """[S, N] 0 or 1, one row a seed."""
    return [[float(c) for c in run["successes"]] for run in result["runs"]]


def _scores(result: Result) -> list[list[float]]:
    return [run.get("scores") or [float(c) for c in run["successes"]] for run in result["runs"]]


def _score_difference(first: Result, second: Result) -> tuple[float, float, float] | None:
    if not any("scores" in run for result in (first, second) for run in result["runs"]):
        return None
    a, b = _scores(first), _scores(second)
    low, high = crossed_difference_interval(a, b, _SEED)
    return float(np.mean(b) - np.mean(a)), low, high


def _by_type(first: Result, second: Result) -> dict[str, float]:
    a, b = first.get("by_type", {}), second.get("by_type", {})
    return {k: b[k]["success_rate"] - a[k]["success_rate"] for k in sorted(a) if k in b}


def _notes(first: Result, second: Result) -> tuple[str, ...]:
    notes = []
    for key, name in (("prompt_hash", "prompts"), ("sampling", "sampling")):
        if first.get(key) != second.get(key):
            notes.append(f"other {name}")
    for name, result in (("first", first), ("second", second)):
        fallbacks = (result.get("endpoint") or {}).get("fallbacks") or []
        notes += [f"the {name}: {fallback.rstrip('.')}" for fallback in fallbacks]
    versions = [(r.get("environment") or {}).get("versions", {}) for r in (first, second)]
    for package in sorted({*versions[0], *versions[1]}):
        pair = [v.get(package, "none") for v in versions]
        if pair[0] != pair[1]:
            notes.append(f"{package} {pair[0]} and {pair[1]}")
    for name, result in (("first", first), ("second", second)):
        if result.get("privileged"):
            notes.append(f"the {name} uses privileged information: {result['privileged']}")
    return tuple(notes)
