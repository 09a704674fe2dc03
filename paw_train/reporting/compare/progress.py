"""The progress of a running comparison: a live table on a terminal, else a line now and then."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paw_train.reporting.charts import duration_text
from paw_train.reporting.compare.grid import PlannedRun
from paw_train.reporting.compare.runs import Failure, Work, updates_done

_LINE_SECONDS = 300.0
_READ_SECONDS = 3.0


class Progress:
    """Shows a grid's progress while it is entered.

    Args:
        folder: of the comparison.
        quiet: show nothing.
    """

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self.folder = folder
        self.console = Console(quiet=quiet, highlight=False)
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._started = self._read = self._lined = time.monotonic()
        self._at_start: int | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line with the time."""
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", soft_wrap=True, markup=False)

    def show(self, work: Work) -> None:
        """Brings the display up to date, where that is due."""
        if self._at_start is None:
            self._at_start = work.finished
        now = time.monotonic()
        if self.console.is_terminal and now - self._read >= _READ_SECONDS:
            self._read = now
            self._live.update(self._table(work), refresh=True)
        elif not self.console.is_terminal and now - self._lined >= _LINE_SECONDS:
            self._lined = now
            at_work = "; ".join(f"{c.name} {self._stage(c)}" for c in work.running.values())
            self.say(f"{self._summary(work)}. Running: {at_work}")

    def failure(self, failure: Failure) -> None:
        """Prints the end of a failed run's log."""
        self.console.print(
            f"\n[bold red]{failure.run} failed[/bold red]; the end of {failure.log}:"
        )
        self.console.print(failure.tail, markup=False, soft_wrap=True)

    def _table(self, work: Work) -> Table:
        table = Table.grid(padding=(0, 2))
        for run in work.running.values():
            table.add_row(Text(run.name), self._stage(run))
        table.add_row(Text("all", style="bold"), Text(self._summary(work), style="bold"))
        return table

    def _summary(self, work: Work) -> str:
        elapsed = time.monotonic() - self._started
        parts = [f"{work.finished} of {len(work.runs)} finished"]
        if work.failures:
            parts.append(f"{len(work.failures)} failed")
        done = work.finished - (self._at_start or 0) + sum(map(self._share, work.running.values()))
        left = len(work.waiting) - sum(map(self._share, work.running.values()))
        if done > 0.2 and left > 0:
            parts.append(f"about {duration_text(elapsed / done * left)} left")
        parts.append(f"{duration_text(elapsed)} so far")
        return ", ".join(parts)

    def _share(self, run: PlannedRun) -> float:
        """The share of a run that is done, by its updates."""
        return min(1.0, updates_done(self.folder / run.name) / max(1, run.settings.updates))

    def _stage(self, run: PlannedRun) -> str:
        folder = self.folder / run.name
        done, planned = updates_done(folder), run.settings.updates
        if not done:
            return "RL begins" if (folder / "eval_before.json").exists() else "warm start"
        if done >= planned:
            return "last evaluation"
        rate = _last_success(folder / "metrics.jsonl")
        return f"update {done} of {planned}" + (
            f", success {100 * rate:.0f} %" if rate is not None else ""
        )


def _last_success(path: Path) -> float | None:
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return float(json.loads(lines[-1])["success_rate"])
    except (IndexError, json.JSONDecodeError, KeyError):
        return None
