"""Results of evaluations side by side: tasks, success and its interval, score and cost."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paw_gym.printable import markdown_text, one_line
from paw_train.evaluation.comparison import load_result
from paw_train.settings.endpoint import CURRENCY

if TYPE_CHECKING:
    from rich.table import Table

Result = Mapping[str, Any]
COLUMNS = ("model", "agent", "panel", "n", "success", "low", "high", "score", "cost")
_OF_RUNS = {"eval_before.json": "before training", "eval_after.json": "after training"}
"""results that training writes into a run, and what stands for their agent"""


def collect(places: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The results in files and folders, those of a training run included, in the order of their paths.

    Raises:
        ValueError: a place is not there, or holds no result.
    """
    found: list[dict[str, Any]] = []
    for place in map(Path, places):
        if not place.is_dir():
            found.append(load_result(place))
            continue
        names = ("result.json", *_OF_RUNS)
        files = sorted(path for path in place.rglob("*.json") if path.name in names)
        here = [result for path in files if (result := _result(path)) is not None]
        if not here:
            raise ValueError(f"There is no result of `paw eval` in {place}.")
        found += here
    return found


def _result(path: Path) -> dict[str, Any] | None:
    """The result in a file; ``None``: it holds something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(data, dict) or "panel_hash" not in data:
        return None
    if path.name in _OF_RUNS:
        data |= {"model": path.parent.name, "agent": _OF_RUNS[path.name]}
    return data


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row by ``COLUMNS`` for each result; rates are shares, ``None`` stands for what is not known."""
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, Any]:
    low, high = result["ci95"] or (None, None)
    partial = "" if result.get("complete", True) else f" (partial, of {result['tasks']})"
    names = (result.get("model") or "-", result["agent"], result["panel"] + partial)
    values = (
        *map(one_line, names), result["n"], result["success_rate"], low, high,
        (result.get("score") or {}).get("mean"), result.get("cost"),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def as_csv(results: Sequence[Result]) -> str:
    """Comma-separated values with a head; numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results))
    return text.getvalue()


def as_markdown(results: Sequence[Result]) -> str:
    """A table in Markdown."""
    head, body = _cells(results)
    rule = ["---" if name in COLUMNS[:3] else "---:" for name in head]
    lines = [head, rule, *([*map(markdown_text, line[:3]), *line[3:]] for line in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_rich(results: Sequence[Result]) -> Table:
    """A table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    head, body = _cells(results)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name in COLUMNS[:3] else "right", overflow="fold")
    for line in body:
        table.add_row(*map(Text, line))
    return table


def _cells(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(head, rows) as texts; score and cost only where some result has one to tell."""
    found = rows(results)
    scored = any(r["score"] is not None and r["score"] != r["success"] for r in found)
    priced = any(r["cost"] is not None for r in found)
    head = ["model", "agent", "panel", "n", "success", "95 % interval"]
    head += ["score"] * scored + [f"cost ({CURRENCY})"] * priced
    body = []
    for r in found:
        rate = "-" if r["success"] is None else f"{100 * r['success']:.1f} %"
        interval = "-" if r["low"] is None else f"{100 * r['low']:.1f} to {100 * r['high']:.1f}"
        line = [r["model"], r["agent"], r["panel"], str(r["n"]), rate, interval]
        line += ["-" if r["score"] is None else f"{r['score']:.3f}"] * scored
        body.append(line + ["-" if r["cost"] is None else f"{r['cost']:.4g}"] * priced)
    return head, body
