"""The end of a run in a few lines: verdict and success per task type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paw_train.reporting.run.run_data import RunData, load_run
from paw_train.reporting.run.tables import change_of, result_rows
from paw_train.reporting.run.verdict import judge

if TYPE_CHECKING:
    from rich.table import Table

_HEAD = ("task type", "n", "before RL", "after RL", "change")


def summary_lines(run_dir: str | Path) -> list[str]:
    """The verdict and a Markdown table, aligned so that it also reads well as plain text.

    Args:
        run_dir: the folder of a run, finished or not.

    Raises:
        ValueError: there is no such folder, or nothing in it comes from a run.
    """
    run = load_run(run_dir)
    verdict = judge(run)
    lines = [verdict.headline + ".", *verdict.details]
    lines += [f"Alarm: {alarm.title}: {alarm.text}" for alarm in run.alarms if alarm.ongoing]
    if run.before is not None or run.after is not None:
        lines += ["", *_markdown([_HEAD, *_rows(run)])]
    return lines


def summary_table(run_dir: str | Path) -> Table:
    """Success before and after by task type, as a table for ``rich``."""
    from rich.table import Table
    from rich.text import Text

    run = load_run(run_dir)
    table = Table(title=Text(run.name), title_justify="left")
    for name in _HEAD:
        table.add_column(name, justify="left" if name == _HEAD[0] else "right")
    for number, row in enumerate(_rows(run)):
        table.add_row(*(Text(cell) for cell in row), end_section=number == 0)
    return table


def _rows(run: RunData) -> list[tuple[str, ...]]:
    rows = []
    for label, before, after in result_rows(run):
        count = " / ".join(dict.fromkeys(str(r.n) for r in (before, after) if r is not None))
        change, _ = change_of(run, before, after)
        cells = (label, count, before or "–", after or "–", change or "–")
        rows.append(tuple(str(cell) for cell in cells))
    return rows


def _markdown(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = []
    for row in rows:
        first = row[0].replace("|", "\\|").ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("| " + " | ".join([first, *rest]) + " |")
    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (w - 1)}:" for w in widths[1:])]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]
