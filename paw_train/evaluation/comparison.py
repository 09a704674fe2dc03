"""Results of evaluations, read back: two compared task by task, or several side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paw_gym.internals.printable import counted, markdown_text, one_line
from paw_train.evaluation.statistics import (
    crossed_difference_interval,
    difference_interval,
    mcnemar_exact,
    paired_interval,
    sign_flip_p_value,
    wilson_interval,
)
from paw_train.settings.base import differences
from paw_train.settings.endpoint import CURRENCY

if TYPE_CHECKING:
    from rich.table import Table

Result = Mapping[str, Any]
_NAMES = ("model", "agent", "panel")
"""columns of results side by side that are no numbers"""
_OF_RUNS = {"eval_before.json": "before training", "eval_after.json": "after training"}
"""results that training writes into a run, and what stands for their agent"""
_SHOWN = ("n", "success_rate", "ci95", "agent")
"""fields that a line of the table needs"""
_SEED = 0


class Comparison(NamedTuple):
    """``second - first`` on one panel."""

    n: int
    """tasks"""
    rates: tuple[float, float]
    difference: float
    ci95: tuple[float, float]
    """bootstrap over tasks, resampled as pairs; over the seeds too if there are several"""
    p_value: float
    test: str
    improved: int
    """tasks that the second solves more often"""
    worsened: int
    by_type: dict[str, float]
    """difference of the success rates by task type"""
    score_difference: tuple[float, float, float] | None
    """difference of the mean scores with its interval, if scores are not just success"""
    notes: list[str]
    """what else differs between the two"""


def load_result(path: str | Path, fields: Sequence[str] = ("n", "runs")) -> dict[str, Any]:
    """A result from its file, or from the folder that holds ``result.json``, with these fields."""
    path = Path(path)
    file = path / "result.json" if path.is_dir() else path
    if not file.exists():
        raise ValueError(f"There is no result {str(file)!r}; `paw eval` writes one.")
    data = _read(file)
    missing = {"panel", "panel_hash", "env_id", *fields} - data.keys()
    if missing:
        raise ValueError(
            f"{file} is no result of `paw eval`, or one of an older version: it lacks "
            f"{', '.join(sorted(missing))}. Evaluate again."
        )
    return data


def _read(file: Path) -> dict[str, Any]:
    """The object in a file; an empty one for anything else."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no result of `paw eval`: {error}") from None
    return data if isinstance(data, dict) else {}


@contextmanager
def naming_damage(*files: object) -> Iterator[None]:
    """Turns what the values of damaged results raise into an error that names the files."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(
            f"{' or '.join(map(str, files))} is not a whole result of `paw eval`, or of `paw panel export` "
            f"({type(error).__name__}: {error})."
        ) from error


def reasons_against(first: Result, second: Result) -> list[str]:
    """Why two results cannot be compared; empty: they can. For different panels nothing else is said."""
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
                f"{counted(result['errors'], 'episode')} of the {name} failed by an error, not measured; "
                "the same `paw eval` runs these again"
            )
        elif not result.get("complete", True):
            reasons.append(
                f"only {result['n']} of {result['tasks']} tasks of the {name} were run "
                f"({result.get('stopped') or 'stopped'}); the same `paw eval` goes on"
            )
    return reasons


def environments_differ(first: Result | None, second: Result | None) -> list[str]:
    """Why the records of two results' environments forbid comparing them."""
    if first is None and second is None:
        return []
    if first is None or second is None:
        which = "first" if first is None else "second"
        return [f"the {which} has no record of its environment (made by training, not `paw eval`?)"]
    if first["id"] != second["id"]:  # one of them is asked at a gateway
        return []
    a, b = first["arguments"], second["arguments"]
    reasons = [
        f"other environment settings: {key}={a.get(key)!r} and {key}={b.get(key)!r}"
        for key in sorted({*a, *b})
        if a.get(key) != b.get(key)
    ]
    if first["tasks"] == second["tasks"] and first["behaviour"] != second["behaviour"]:
        hashes = ((r["behaviour"] or "not recorded")[:12] for r in (first, second))
        reasons.append(
            f"the environment answers otherwise to the same actions ({' and '.join(hashes)}): another "
            "version of the program, its data or its search engine"
        )
    return reasons


def compare(first: Result, second: Result) -> Comparison:
    reasons = reasons_against(first, second)
    if reasons:
        raise ValueError("These results cannot be compared: " + "; ".join(reasons) + ".")
    a, b = _successes(first), _successes(second)
    rates = float(np.mean(a)), float(np.mean(b))
    delta = np.mean(b, 0) - np.mean(a, 0)
    improved, worsened = int((delta > 0).sum()), int((delta < 0).sum())
    if len(a) == len(b) == 1:
        interval = paired_interval(a[0], b[0], _SEED)
        p_value, test = mcnemar_exact(improved, worsened), "McNemar, exact"
    else:
        interval = crossed_difference_interval(a, b, _SEED)
        p_value = sign_flip_p_value(delta.tolist(), _SEED)
        test = "random signs of the tasks' mean differences"
    if np.ptp(delta) == 0:
        # a bootstrap of equal values knows no uncertainty
        n = len(delta)
        ends = [(rate, *wilson_interval(rate * n, n)) for rate in rates]
        interval = difference_interval(*ends)
    types, other = first.get("by_type", {}), second.get("by_type", {})
    return Comparison(
        n=len(delta),
        rates=rates,
        difference=float(delta.mean()),
        ci95=interval,
        p_value=p_value,
        test=test,
        improved=improved,
        worsened=worsened,
        by_type={
            k: other[k]["success_rate"] - types[k]["success_rate"]
            for k in sorted(types)
            if k in other
        },
        score_difference=_score_difference(first, second),
        notes=_notes(first, second),
    )


def _successes(result: Result) -> list[list[float]]:
    """[S, N] 0 or 1, one row a seed."""
    return [[float(c) for c in run["successes"]] for run in result["runs"]]


def _score_difference(first: Result, second: Result) -> tuple[float, float, float] | None:
    if not any("scores" in run for result in (first, second) for run in result["runs"]):
        return None
    a, b = (
        [run.get("scores") or row for run, row in zip(r["runs"], _successes(r), strict=True)]
        for r in (first, second)
    )
    return float(np.mean(b) - np.mean(a)), *crossed_difference_interval(a, b, _SEED)


def _notes(first: Result, second: Result) -> list[str]:
    pairs = (("prompts", "prompt_hash"), ("sampling", "sampling"))
    notes = [f"other {name}" for name, key in pairs if first.get(key) != second.get(key)]
    for name, result in (("first", first), ("second", second)):
        fallbacks = (result.get("endpoint") or {}).get("fallbacks") or []
        notes += [f"the {name}: {fallback.rstrip('.')}" for fallback in fallbacks]
        if result.get("privileged"):
            notes.append(f"the {name} uses privileged information: {result['privileged']}")
    a, b = ((r.get("environment") or {}).get("versions", {}) for r in (first, second))
    for package in sorted({*a, *b}):
        if a.get(package) != b.get(package):
            notes.append(f"{package} {a.get(package, 'none')} and {b.get(package, 'none')}")
    return notes


# --- side by side ---------------------------------------------------------------------------------


def collect(places: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The results in files and folders, those of a training run included, in the order of their paths."""
    found: list[dict[str, Any]] = []
    for place in map(Path, places):
        if not place.is_dir():
            found.append(_named(place, load_result(place, _SHOWN)))
            continue
        names = ("result.json", *_OF_RUNS)
        files = sorted(path for path in place.rglob("*.json") if path.name in names)
        here = [_named(path, data) for path in files if "panel_hash" in (data := _read(path))]
        if not here:
            raise ValueError(f"There is no result of `paw eval` in {place}.")
        found += here
    return found


def _named(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """A result with its run's name, if training wrote it; one that has no line in a table is refused."""
    if (of := _OF_RUNS.get(path.name)) is not None:
        data = data | {"model": path.resolve().parent.name, "agent": of}
    with naming_damage(path):
        _cells([data])
    return data


def as_markdown(results: Sequence[Result]) -> str:
    head, body = _cells(results)
    rule = ["---" if name in _NAMES else "---:" for name in head]
    lines = [head, rule, *([*map(markdown_text, line[:3]), *line[3:]] for line in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_rich(results: Sequence[Result]) -> Table:
    from rich.table import Table
    from rich.text import Text

    head, body = _cells(results)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name in _NAMES else "right", overflow="fold")
    for line in body:
        table.add_row(*map(Text, line))
    return table


def _names(result: Result) -> tuple[str, str, str]:
    return result.get("model") or "-", result["agent"], result["panel"]


def _settings_apart(result: Result, namesakes: Sequence[Result]) -> str:
    """The settings of a result that differ from those of results with the same names, in brackets."""

    def settings(of: Result) -> dict[str, Any]:
        return {"agent": of.get("agent_settings"), **(of.get("settings") or {})}

    own = settings(result)
    found = {k: d[0] for other in namesakes for k, d in differences(own, settings(other)).items()}
    return f" ({', '.join(f'{k}={found[k]}' for k in sorted(found))})" if found else ""


def _cells(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(head, rows) as texts; score and cost only if some result has one to tell."""
    scores = [(result.get("score") or {}).get("mean") for result in results]
    rates = [result["success_rate"] for result in results]
    scored = any(s is not None and s != rate for s, rate in zip(scores, rates, strict=True))
    priced = any(result.get("cost") is not None for result in results)
    head = [*_NAMES, "n", "success", "95 % interval"]
    head += ["score"] * scored + [f"cost ({CURRENCY})"] * priced
    body = []
    for result, rate, score in zip(results, rates, scores, strict=True):
        ends = result["ci95"]
        partial = "" if result.get("complete", True) else f" (partial, of {result['tasks']})"
        model, agent, panel = _names(result)
        apart = _settings_apart(result, [r for r in results if _names(r) == _names(result)])
        line = [*map(one_line, (model, agent + apart, panel + partial)), str(result["n"])]
        line.append("-" if rate is None else f"{100 * rate:.1f} %")
        line.append(f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}" if ends else "-")
        line += ["-" if score is None else f"{score:.3f}"] * scored
        cost = result.get("cost")
        body.append(line + ["-" if cost is None else f"{cost:.4g}"] * priced)
    return head, body
