"""A person plays an environment in the terminal: the episodes and the screen of ``paw play``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
from rich import box
from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paw_gym.core import TextEnv
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.printable import counted, safe_console
from paw_gym.internals.validation import naming_authors_line
from paw_gym.wrappers import RecordTransitions

COMMANDS = {
    ":hint": "the reference solver's next action",
    ":again": "start this task again",
    ":next": "start another task (:next ID starts that one)",
    ":help": "this list",
    ":quit": "leave (Ctrl-D and Ctrl-C too)",
}
SHOWN_ACTIONS = 90
"""actions listed at a time; more can still be typed"""


class Game:
    """An environment, played and recorded episode after episode by lines that are typed or piped in."""

    def __init__(self, title: str, env: gym.Env[str, str], path: Path) -> None:
        inner = env.unwrapped
        assert isinstance(inner, TextEnv)
        self.title, self.env, self.path = title, inner, path
        self.console = safe_console(highlight=False)
        self._interactive = sys.stdin.isatty()  # if not, lines are echoed: a log can be read
        self._recorder = RecordTransitions(env, path)
        self._taken = 0
        self.observation, self.reward = "", 0.0
        self.info: dict[str, Any] = {}
        self.terminated = self.truncated = False
        self.recorded = 0
        """episodes in the file"""

    def start(self, task_id: str | None = None, seed: int | None = None) -> None:
        """Starts an episode."""
        if task_id is not None:
            self.env.tasks[task_id]
        self._leave()
        options = None if task_id is None else {"task_id": task_id}
        with naming_authors_line("reset"):
            self.observation, self.info = self._recorder.reset(seed=seed, options=options)
        self.reward, self.terminated, self.truncated = 0.0, False, False
        self._taken = 0

    def run(self) -> None:
        """Reads lines until one of them is ``:quit``, or there are no more; then closes the record."""
        self.console.print(Text(f"Recording to {self.path}", style="dim"), soft_wrap=True)
        try:
            self._show_task()
            for line in self._lines():
                if line == ":quit":
                    break
                if line.startswith(":"):
                    self._command(*line.split(maxsplit=1))
                elif self._over:
                    self._note("The episode is over: :next, :again or :quit.")
                else:
                    self._act(line)
        finally:
            self._leave()
            self._recorder.close()
            if self.recorded:
                text = f"Recorded {counted(self.recorded, 'episode')} in {self.path}"
                self.console.print(Text(text, style="green"), soft_wrap=True)
            else:
                self._note("Nothing was recorded.", "dim")

    @property
    def _over(self) -> bool:
        return self.terminated or self.truncated

    def _leave(self) -> None:
        """Counts the unfinished episode that the recorder is about to write."""
        if self._taken and not self._over:
            self.recorded += 1

    def _lines(self) -> Iterator[str]:
        if self._interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  (lets arrow keys edit what is typed)
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return
            if not self._interactive:
                self.console.print(Text(line))
            if line:
                yield line

    def _act(self, line: str) -> None:
        actions, action = self.env.list_actions() or [], line
        if line.isdecimal() and actions and line not in actions:
            if not 1 <= int(line) <= len(actions):
                self._note(f"There is no action {line}: they go from 1 to {len(actions)}.")
                return
            action = actions[int(line) - 1]
            self._note(f"  {action}", "bold cyan")
        with naming_authors_line(f"step({action!r:.80})"):
            answer = self._recorder.step(action)
        self._taken += 1
        self.observation, self.reward, self.terminated, self.truncated, self.info = answer
        self.recorded += self._over
        self._show_moment()

    def _command(self, name: str, argument: str = "") -> None:
        if name == ":hint":
            self._hint()
        elif name in (":again", ":next"):
            try:
                self.start(self.info["task_id"] if name == ":again" else argument or None)
            except KeyError as error:
                self._note(str(error))
            else:
                self._show_task()
        elif name == ":help":
            table = Table.grid(padding=(0, 2))
            for command, meaning in COMMANDS.items():
                table.add_row(Text(command, style="cyan"), meaning)
            self.console.print(table)
            self.console.print("Anything else is an action; a number picks one from the list.")
        else:
            self._note(f"There is no command {name!r}. {did_you_mean(name, COMMANDS, 1)}")

    def _hint(self) -> None:
        actions = []
        if not self._over:
            with suppress(NotImplementedError):
                actions = self.env.reference_solution()
        found = f"Try: {actions[0]}" if actions else None
        self._note(found or "No hint: the solver finds no solution from here.")

    def _show_task(self) -> None:
        self.console.print()
        self.console.rule(Text(self.title, style="bold"), style="dim")
        task = Text(self.info["instruction"], style="bold")
        about = Text(f"{self.info['task_type']} · {self.info['task_id']}", style="dim")
        self.console.print(Panel(Text.assemble(task, "\n", about), title="task", box=box.ROUNDED))
        self._show_moment()

    def _show_moment(self) -> None:
        shown = self.env.prompt_observation(self.observation) or self.observation
        invalid = not self.info["action_is_valid"]
        panel = Panel(
            Text(shown),
            title=f"step {self._taken} of {self.env.max_steps}",
            title_align="left",
            subtitle="not accepted" if invalid else None,
            subtitle_align="right",
            border_style="yellow" if invalid else "blue",
            box=box.ROUNDED,
        )
        self.console.print(panel)
        if self._over:
            self._show_end()
            return
        if self.reward:
            self._note(f"Reward {self.reward:+g}")
        actions = self.env.list_actions() or []
        digits = len(str(min(len(actions), SHOWN_ACTIONS)))
        entries = [
            Text.assemble((f"{number:>{digits}} ", "cyan"), action)
            for number, action in enumerate(actions[:SHOWN_ACTIONS], start=1)
        ]
        if entries:
            self.console.print(Columns(entries, padding=(0, 3), column_first=True))
        if len(actions) > SHOWN_ACTIONS:
            self._note(f"... and {len(actions) - SHOWN_ACTIONS} more; any can be typed.")
        keys = "a number, " if actions else ""
        self._note(f"{keys}an action, or :hint :again :help :quit", "dim")

    def _show_end(self) -> None:
        if self.info["success"]:
            word, style = "Success", "green"
        else:
            word, style = ("Out of steps", "yellow") if self.truncated else ("Failed", "red")
        score = self.info["score"]
        detail = f"{self._taken} actions, reward {self.reward:g}, score {score:g}"
        title = Text(word, style=f"bold {style}")
        self.console.print(Panel(Text(detail), title=title, border_style=style))
        self._note(":next, :again or :quit", "dim")

    def _note(self, text: str, style: str = "yellow") -> None:
        self.console.print(Text(text, style=style))
