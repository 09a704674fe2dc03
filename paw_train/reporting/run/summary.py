"""The end of a run in the terminal: the verdict, the alarms, and success per task type."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from paw_train.reporting.run.run_data import RunData
from paw_train.reporting.run.tables import result_rows
from paw_train.reporting.run.verdict import verdict_of


def summary_lines(run: RunData) -> list[str]:
    """The verdict on a run, and the alarms that hold at its end."""
    verdict = verdict_of(run)
    alarms = [f"Alarm: {a.title}: {a.text}" for a in run.alarms if a.ongoing]
    return [verdict.headline + ".", *verdict.details, *alarms]


def summary_table(run: RunData) -> Table:
    """Success before and after RL by task type."""
    table = Table(title=Text(run.name), title_justify="left")
    table.add_column("environment" if run.mixed else "task type")
    for name in ("n", "before RL", "after RL", "change"):
        table.add_column(name, justify="right")
    for row in result_rows(run):
        cells = (row.label, row.count, row.before or "–", row.after or "–", row.change or "–")
        table.add_row(*(Text(str(cell)) for cell in cells), end_section=row.label == "all")
    return table
