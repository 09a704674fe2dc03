"""The progress of a running comparison: what happens, and now and then a line on where it stands."""

from __future__ import annotations

import json
import time
from pathlib import Path

from paw_gym.internals.printable import safe_console
from paw_train.reporting.charts import duration_text
from paw_train.reporting.compare.grid import PlannedRun
from paw_train.reporting.compare.runs import Failure, Work, updates_done

_LINE_SECONDS = 60.0
"""between two lines on a terminal; in a log it is five times that"""


class Progress:
    """Shows a grid's progress."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self.folder = folder
        self.console = safe_console(quiet=quiet, highlight=False)
        self._started = self._lined = time.monotonic()
        self._at_start: int | None = None

    def say(self, text: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", soft_wrap=True, markup=False)

    def show(self, work: Work) -> None:
        """Prints a line on every run at work, where one is due."""
        if self._at_start is None:
            self._at_start = work.finished
        now = time.monotonic()
        if now - self._lined >= _LINE_SECONDS * (1 if self.console.is_terminal else 5):
            self._lined = now
            at_work = "; ".join(f"{c.name} {self._stage(c)}" for c in work.running.values())
            self.say(f"{self._summary(work)}. Running: {at_work}")

    def failure(self, failure: Failure) -> None:
        self.console.print(
            f"\n[bold red]{failure.run} failed[/bold red]; the end of {failure.log}:"
        )
        self.console.print(failure.tail, markup=False, soft_wrap=True)

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
