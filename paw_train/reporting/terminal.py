"""A training run in the terminal: progress, a line for each update, alarms, the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from paw_train.evaluation.terminal import Display, StageProgress
from paw_train.reporting.run.alarms import find_alarms
from paw_train.reporting.run.data import RunData, load_run
from paw_train.reporting.run.page import result_rows
from paw_train.reporting.run.verdict import verdict_of


class RunDisplay(Display):
    """A display that also shows a run's RL updates and its summary."""

    @contextmanager
    def updates(
        self, total: int, earlier: Sequence[Mapping[str, Any]] = (), wm_loss: str | None = None
    ) -> Iterator[UpdateDisplay]:
        """A bar for the RL updates."""
        with StageProgress(self.console) as progress:
            bar = progress.add_task("training", total=total, completed=len(earlier), note="")
            yield UpdateDisplay(progress, bar, earlier, wm_loss)

    def summary(self, folder: Path) -> None:
        """The verdict on the run, and success before and after RL as a table."""
        run = load_run(folder)
        for line in summary_lines(run):
            self.say(line)
        self.console.print(summary_table(run))


class UpdateDisplay:
    """The bar of the RL updates: called with an update's metrics, it prints their line and alarms."""

    def __init__(
        self,
        progress: StageProgress,
        bar: Any,
        earlier: Sequence[Mapping[str, Any]] = (),
        wm_loss: str | None = None,
    ) -> None:
        self.progress, self.bar = progress, bar
        self._records, self._wm_loss = list(earlier), wm_loss

    def rollout(self, update: int, running: int, episodes: int) -> None:
        self.progress.update(
            self.bar, note=f"rollout: {episodes - running}/{episodes} episodes over"
        )

    def learning(self, update: int) -> None:
        self.progress.update(self.bar, note="learning")

    def __call__(self, metrics: dict[str, Any]) -> None:
        self.progress.say(_line(metrics))
        self.progress.update(self.bar, completed=metrics["update"])
        self._records.append(metrics)
        for alarm in find_alarms(self._records, self._wm_loss):
            if alarm.first == metrics["update"]:
                words = Text.assemble((f"Alarm: {alarm.title}", "bold red"), f": {alarm.text}")
                self.progress.say(words)


def _line(m: dict[str, Any]) -> str:
    parts = [
        f"update {m['update']:4d}",
        f"success {100 * m['success_rate']:5.1f} %",
        f"reward {m['reward_mean']:6.2f}",
        f"steps {m['steps_mean']:4.1f}",
        f"invalid {100 * m['invalid_rate']:4.1f} %",
        f"refused {100 * m['refused_rate']:4.1f} %",
    ]
    for name, label in (("kl", "kl"), ("wm_loss", "wm"), ("obs_nll", "nll"), ("grad_norm", "|g|")):
        if m.get(name) is not None:
            parts.append(f"{label} {m[name]:.3f}")
    parts.append(f"{m['seconds_rollout']:.0f}+{m['seconds_train']:.0f} s")
    if m.get("validation") is not None:
        parts.append(f"[bold]validation {100 * m['validation']:.1f} %[/bold]")
    return "  ".join(parts)


def summary_lines(run: RunData) -> list[str]:
    """The verdict on a run, and the alarms that hold at its end."""
    verdict = verdict_of(run)
    alarms = [f"Alarm: {a.title}: {a.text}" for a in run.alarms if a.ongoing]
    return [verdict.headline + ".", *verdict.details, *alarms]


def summary_table(run: RunData) -> Table:
    table = Table(
        title=Text(run.name), title_justify="left", box=SIMPLE_HEAD, padding=(0, 0), show_edge=False
    )
    table.add_column("environment" if run.mixed else "task type", overflow="fold")
    for name in ("n", "before RL, %", "after RL, %", "change"):
        table.add_column(name, justify="right", no_wrap=True)  # 80 columns hold ALFWorld's names
    for row in result_rows(run):
        rates = (f"{100 * r.rate:.1f} {r.interval}" if r else "–" for r in (row.before, row.after))
        cells = (row.label, row.count, *rates, row.change or "–")
        table.add_row(*map(Text, cells), end_section=row.label == "all")
    return table
