"""An evaluation in the terminal: its progress, and its result as a table and a few lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from paw_gym.internals.printable import counted, safe_console
from paw_train.settings.endpoint import money

if TYPE_CHECKING:
    from paw_train.evaluation.runner import PanelRun

Price = Callable[[float, float, float], float]
"""the cost of so many prompt and response tokens, with so many of the prompts' in a server's cache"""
_CAUSES = 3
"""causes of invalid turns that are named"""
LINE_EVERY = 30.0
"""seconds between two lines about a stage where there is no terminal"""
_ADVICE = {
    "truncated": "rollout.max_response_tokens=N allows longer answers; reasoning models need many.",
    "tool call": "The model answers with tool calls, which were not offered: agent.action_format=tools.",
    "unknown tool": "The model calls a tool that was not offered: agent.action_format=tags needs no tools.",
    "tool arguments": "The arguments of the model's tool calls are not the one that was asked for, or "
    "cannot be read: agent.action_format=tags needs none.",
}
"""the setting that helps, by cause of invalid turns"""


Advance = Callable[..., None]


class Display:
    """Progress bars where there is a terminal, and lines everywhere."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = safe_console(quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Advance]:
        """A bar for a stage; the value is a function of how much is done, and a note."""
        with StageProgress(self.console) as progress:
            bar = progress.add_task(name, total=total, note="")
            yield lambda done, note="": progress.update(bar, completed=done, note=note)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        """The bar of a stage, and a line when it is done."""
        with self.bar(name, total) as advance:
            yield advance
        self.say(f"{name}: done")

    def result(self, result: Mapping[str, Any]) -> None:
        """An evaluation as a table, success by task type with 95 % intervals, and further lines."""
        if result["n"]:
            self.console.print(result_table(result))
        for line in result_lines(result):
            self.console.print(line, soft_wrap=True, markup=False)


def spent_so_far(run: PanelRun, price: Price | None) -> str:
    """The note at an evaluation's bar: turns, tokens and cost so far."""
    spent, parts = run.spent, [counted(run.turns, "turn")]
    if spent.calls:
        parts.append(f"{spent.prompt_tokens + spent.completion_tokens:,} tokens")
    if price is not None:
        tokens = (spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens)
        parts.append(f"cost {money(price(*tokens))}")
    return ", ".join(parts)


class StageProgress(Progress):
    """Bars in a terminal that vanish when they are done; elsewhere a line now and then."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._last_line = time.monotonic()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Records how far a stage is; arguments as of ``Progress.update``."""
        super().update(task_id, **fields)
        if not self.console.is_terminal and time.monotonic() - self._last_line >= LINE_EVERY:
            stage = next(task for task in self.tasks if task.id == task_id)
            note = stage.fields.get("note")
            line = f"{stage.description}: {stage.completed:.0f} of {stage.total:.0f}"
            self.say(Text(f"{line}, {note}" if note else line))

    def say(self, line: str | Text) -> None:
        """Prints a line of the stage's own, after which none of these is due for a while."""
        self._last_line = time.monotonic()
        self.console.print(line, soft_wrap=True)


def result_table(result: Mapping[str, Any]) -> Table:
    """Success, overall and by task type, with 95 % intervals."""
    title = f"{result['panel']}: {result['model'] or result['agent']}"
    table = Table(title=Text(title + ("" if result.get("complete", True) else " (partial)")))
    table.add_column("task type")
    for column in ("tasks", "success", "95 % interval"):
        table.add_column(column, justify="right")
    averages = {
        f"mean of {len(part['types'])}: {name}": part
        for name, part in result.get("averages", {}).items()
    }
    for name, part in [*result["by_type"].items(), ("all", result), *averages.items()]:
        low, high = part["ci95"]
        table.add_row(
            Text(name),
            str(part["n"]),
            f"{100 * part['success_rate']:.1f} %",
            f"{100 * low:.1f} to {100 * high:.1f}",
        )
    return table


def result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a result beside success: score, turns, cost, turns left out, failures."""
    score = result["score"]["mean"]
    if score is not None and abs(score - result["success_rate"]) > 1e-9:
        low, high = result["score"]["ci95"]
        yield f"score {score:.3f} (95 % interval {low:.3f} to {high:.3f})"
    if result["n"]:
        yield (
            f"mean steps {result['mean_steps']:.1f}, invalid {100 * result['invalid_rate']:.1f} %, "
            f"truncated {100 * result.get('truncated_rate', 0.0):.1f} %, "
            f"{result['seconds']:.0f} s, panel {result['panel_hash'][:12]}"
        )
    if result.get("panel_note"):
        yield result["panel_note"]
    if result.get("model_calls"):
        used, tokens, cost = "tokens unknown", result["tokens"], result.get("cost")
        if tokens is not None:
            cached = f" ({tokens['cached']:,} cached)" if tokens["cached"] else ""
            used = (
                f"{tokens['prompt']:,} prompt{cached} and {tokens['completion']:,} response tokens"
            )
        priced = "" if cost is None else f", cost {money(cost)}"
        yield f"{counted(result['model_calls'], 'model call')}, {used}{priced}"
    if causes := result.get("invalid_causes"):
        named = [f"{name} ({count})" for name, count in list(causes.items())[:_CAUSES]]
        yield f"invalid turns: {', '.join(named)}"
        yield from (text for name, text in _ADVICE.items() if name in causes)
    yield from _left_out(result)
    yield from (result.get("endpoint") or {}).get("fallbacks", [])
    yield from _missing(result)


def _left_out(result: Mapping[str, Any]) -> Iterator[str]:
    left, limit = result.get("forgotten") or {}, result.get("context_tokens")
    reason = (
        f"the context limit is {limit:,} tokens" if limit else "the model refused longer contexts"
    )
    if episodes := left.get("episodes"):
        turns = counted(left["turns"], "turn")
        yield f"context: {turns} left out, in {counted(episodes, 'episode')} ({reason})"
    if prompts := left.get("prompts"):
        yield f"context: {counted(prompts, 'prompt')} lost the oldest part ({reason})"
    if ended := left.get("ended_episodes"):
        yield f"context: {counted(ended, 'episode')} ended at it ({reason})"


def _missing(result: Mapping[str, Any]) -> Iterator[str]:
    partial, stopped = not result.get("complete", True), result.get("stopped")
    if partial:
        yield f"Partial: {result['n']} of {result['tasks']} tasks were run; rates are of these."
    if result["errors"]:
        reason = " ".join((result.get("first_error") or "unknown").strip().splitlines()[-1:])
        yield f"{counted(result['errors'], 'episode')} failed by an error. The first reason: {reason}"
        tasks = ", ".join(result.get("failed_tasks") or ["unknown"])
        yield shorten(f"Failed: {tasks}", 200, placeholder=" ...")
    if stopped:
        yield f"Stopped: {stopped}"
    if partial or result["errors"] or stopped:
        uncached = (result.get("endpoint") or {}).get("cache", "") is None
        again = ", from their beginning without a cache (endpoint.cache=null)" if uncached else ""
        yield f"The same command runs the missing episodes{again}."
