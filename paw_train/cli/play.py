"""A person plays an environment in the terminal: the episodes, and the screen of ``paw play``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paw_gym.core import TextEnv
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.printable import safe_console
from paw_gym.internals.validation import naming_authors_line
from paw_gym.wrappers import RecordTransitions


class PlaySession:
    """One environment, played episode after episode."""

    def __init__(self, env: gym.Env[str, str], path: Path) -> None:
        self.path = path
        self._recorder = RecordTransitions(env, path)
        self._past: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
        self.observation = ""
        self.info: dict[str, Any] = {}
        self.reward = 0.0
        self.terminated = False
        self.truncated = False
        self.recorded = 0
        """episodes in the file"""

    @property
    def env(self) -> TextEnv:
        inner = self._recorder.unwrapped
        assert isinstance(inner, TextEnv)
        return inner

    @property
    def step(self) -> int:
        return len(self._past)

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def actions(self) -> list[str]:
        """The admissible actions; empty if the environment does not list them."""
        return list(self.env.list_actions() or [])

    def start(self, task_id: str | None = None, seed: int | None = None) -> None:
        """Starts an episode."""
        if task_id is not None:
            self.env.tasks[task_id]
        self._leave()
        options = None if task_id is None else {"task_id": task_id}
        with naming_authors_line("reset"):
            self.observation, self.info = self._recorder.reset(seed=seed, options=options)
        self.reward, self.terminated, self.truncated = 0.0, False, False
        self._past = []

    def again(self) -> None:
        self.start(self.info["task_id"])

    def _leave(self) -> None:
        """Counts the unfinished episode that the recorder is about to write."""
        if self._past and not self.over:
            self.recorded += 1

    def act(self, action: str) -> None:
        """Takes an action."""
        before = (self.env.save_state(), self.observation, self.info)
        with naming_authors_line(f"step({action!r:.80})"):
            answer = self._recorder.step(action)
        self._past.append(before)
        self.observation, self.reward, self.terminated, self.truncated, self.info = answer
        if self.over:
            self.recorded += 1

    def undo(self, steps: int = 1) -> int:
        """Takes back actions, also in the record; returns their number."""
        if self.over:
            raise RuntimeError("The episode is over and recorded; :again starts the task again.")
        steps = min(steps, len(self._past))
        if steps > 0:
            state, self.observation, self.info = self._past[-steps]
            del self._past[-steps:]
            self.env.restore_state(state)
            self._recorder.undo(steps)
            self.reward = 0.0
        return steps

    def hint(self) -> str | None:
        """The reference solver's next action; ``None`` if there is no solver, or no solution from here."""
        try:
            actions = self.env.reference_solution()
        except NotImplementedError:
            return None
        return actions[0] if actions else None

    def close(self) -> None:
        self._leave()
        self._past = []
        self._recorder.close()


COMMANDS = {
    ":undo": "take back an action (:undo 3 takes back three)",
    ":hint": "the reference solver's next action",
    ":again": "start this task again",
    ":next": "start another task (:next ID starts that one)",
    ":help": "this list",
    ":quit": "leave (Ctrl-D and Ctrl-C too)",
}
SHOWN_ACTIONS = 90
"""actions listed at a time; more can still be typed"""


class Screen:
    """Shows a session and passes on to it what is typed (or piped in).

    Args:
        interactive: whether a person types; if not, lines are echoed, so that a log can be read.
    """

    def __init__(self, title: str, interactive: bool, console: Console | None = None) -> None:
        self.title = title
        self.interactive = interactive
        self.console = console or safe_console(highlight=False)

    def run(self, session: PlaySession) -> None:
        """Reads lines until one of them is ``:quit``, or there are no more."""
        self.console.print(Text(f"Recording to {session.path}", style="dim"), soft_wrap=True)
        self._opening(session)
        for line in self._lines(session):
            if line == ":quit":
                break
            if line.startswith(":"):
                self._command(session, line)
            elif session.over:
                self._note("The episode is over: :next, :again or :quit.")
            else:
                self._act(session, line)

    def close(self, session: PlaySession) -> None:
        """Prints the last line, which says where the record is."""
        count = session.recorded
        if count:
            text = f"Recorded {count} episode{'s' if count > 1 else ''} in {session.path}"
            self.console.print(Text(text, style="green"), soft_wrap=True)
        else:
            self.console.print("Nothing was recorded.", style="dim")

    # --- input ---------------------------------------------------------------------------------

    def _lines(self, session: PlaySession) -> Iterator[str]:
        if self.interactive:
            _complete_with(session)
        while True:
            try:
                line = input("> ")
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return
            if not self.interactive:
                self.console.print(Text(line))
            if line.strip():
                yield line.strip()

    def _act(self, session: PlaySession, line: str) -> None:
        actions = session.actions
        action = line
        if line.isdecimal() and actions and line not in actions:
            if not 1 <= int(line) <= len(actions):
                self._note(f"There is no action {line}: they go from 1 to {len(actions)}.")
                return
            action = actions[int(line) - 1]
            self.console.print(Text(f"  {action}", style="bold cyan"))
        session.act(action)
        self._moment(session)

    def _command(self, session: PlaySession, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name == ":undo":
            self._undo(session, argument)
        elif name == ":hint":
            self._hint(session)
        elif name == ":again":
            session.again()
            self._opening(session)
        elif name == ":next":
            self._next(session, argument or None)
        elif name == ":help":
            self._help()
        else:
            self._note(f"There is no command {name!r}. {did_you_mean(name, COMMANDS, 1)}")

    def _undo(self, session: PlaySession, argument: str) -> None:
        if argument and not (argument.isdecimal() and int(argument)):
            self._note(f":undo takes a number of actions, got {argument!r}.")
            return
        try:
            undone = session.undo(int(argument or 1))
        except RuntimeError as error:
            self._note(str(error))
            return
        if not undone:
            self._note("There is no action to take back.")
            return
        self._note(f"Took back {undone} action{'s' if undone > 1 else ''}.")
        self._moment(session)

    def _hint(self, session: PlaySession) -> None:
        hint = None if session.over else session.hint()
        self._note(f"Try: {hint}" if hint else "No hint: the solver finds no solution from here.")

    def _next(self, session: PlaySession, task_id: str | None) -> None:
        try:
            session.start(task_id)
        except KeyError as error:
            self._note(str(error))
            return
        self._opening(session)

    # --- output --------------------------------------------------------------------------------

    def _opening(self, session: PlaySession) -> None:
        self.console.print()
        self.console.rule(Text(self.title, style="bold"), style="dim")
        task = Text(session.info["instruction"], style="bold")
        about = Text(f"{session.info['task_type']} · {session.info['task_id']}", style="dim")
        self.console.print(Panel(Text.assemble(task, "\n", about), title="task", box=box.ROUNDED))
        self._moment(session)

    def _moment(self, session: PlaySession) -> None:
        shown = session.env.prompt_observation(session.observation) or session.observation
        invalid = not session.info["action_is_valid"]
        panel = Panel(
            Text(shown),
            title=f"step {session.step} of {session.env.max_steps}",
            title_align="left",
            subtitle="not accepted" if invalid else None,
            subtitle_align="right",
            border_style="yellow" if invalid else "blue",
            box=box.ROUNDED,
        )
        self.console.print(panel)
        if session.over:
            self._ending(session)
            return
        if session.reward:
            self._note(f"Reward {session.reward:+g}")
        self._menu(session.actions)

    def _menu(self, actions: Sequence[str]) -> None:
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
        self.console.print(f"{keys}an action, or :undo :hint :help :quit", style="dim")

    def _ending(self, session: PlaySession) -> None:
        if session.info["success"]:
            word, style = "Success", "green"
        elif session.truncated:
            word, style = "Out of steps", "yellow"
        else:
            word, style = "Failed", "red"
        score = session.info["score"]
        detail = f"{session.step} actions, reward {session.reward:g}, score {score:g}"
        self.console.print(
            Panel(Text(detail), title=Text(word, style=f"bold {style}"), border_style=style)
        )
        self.console.print(":next, :again or :quit", style="dim")

    def _help(self) -> None:
        table = Table.grid(padding=(0, 2))
        for name, meaning in COMMANDS.items():
            table.add_row(Text(name, style="cyan"), meaning)
        self.console.print(table)
        self.console.print("Anything else is an action; a number picks one from the list.")

    def _note(self, text: str) -> None:
        self.console.print(Text(text, style="yellow"))


def _complete_with(session: PlaySession) -> None:
    """Lets Tab complete actions and commands, if the terminal has readline."""
    try:
        import readline
    except ImportError:
        return

    def complete(text: str, state: int) -> str | None:
        found = [name for name in [*session.actions, *COMMANDS] if name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
