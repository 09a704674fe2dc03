"""``paw view --terminal``: the same runs, lists and episodes on a machine without a browser.

Commands that are typed or piped in move between screens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from paw_train.viewer.queries import Filter
from paw_train.viewer.screens import episode_screen, list_screen, run_screen, runs_screen
from paw_train.viewer.store import RunStore

ROWS = 20
"""of a list on one page"""
_HELP = (
    "NUMBER opens a row · r runs · c curves or result · g groups · e episodes · n p next and "
    "previous · /WORDS searches · f all of an episode, with prompts and requests as sent · b back · "
    "q leaves"
)


class TerminalViewer:
    """One look at a folder.

    Args:
        root: of a run or of runs.
        console: where to print.
        cache: where indices go; ``None``: the cache folder.

    Raises:
        ValueError: there is no run.
    """

    def __init__(
        self, root: Path, console: Console | None = None, cache: Path | None = None
    ) -> None:
        self.console = console or Console(highlight=False)
        self.store = RunStore(root, cache)
        self._run = self.store.first
        self._view = "run" if self._run else "runs"
        self._words, self._offset = "", 0
        self._list = "groups"
        self._episode, self._whole = "", False

    def look(self, lines: Iterator[str]) -> None:
        """Shows a screen after each command, until the lines end or one of them is ``q``."""
        self._show()
        for line in lines:
            command = line.strip()
            if command in ("q", ":q", "quit", "exit"):
                return
            problem = self._go(command)
            if problem:
                self.console.print(Text(problem, "yellow"), soft_wrap=True)
            else:
                self._show()

    def typed(self) -> Iterator[str]:
        """The lines that are typed; ends with Ctrl-D."""
        self.console.print(Text(_HELP, "dim"))
        while True:
            try:
                yield self.console.input("view> ")
            except EOFError:
                return

    # --- where to ------------------------------------------------------------------------------

    def _go(self, command: str) -> str | None:
        """Changes what is shown; returns what is wrong with the command instead."""
        if command in ("?", "h", "help", ""):
            return _HELP
        if command == "r":
            self._view = "runs"
        elif command == "b":
            self._back()
        elif command.isdecimal():
            return self._open(int(command))
        elif self._run is None:
            return "Choose a run first: its number. ? lists what can be typed."
        elif command == "c":
            self._view = "run"
        elif command in ("g", "e") or command.startswith("/"):
            self._words = command[1:].strip() if command.startswith("/") else ""
            self._list = {"g": "groups", "e": "episodes"}.get(command, self._list)
            self._view, self._offset = "list", 0
        elif command in ("n", "p"):
            return self._move(1 if command == "n" else -1)
        elif command == "f" and self._view == "episode":
            self._whole = not self._whole
        else:
            return f"{command!r} is no command here. ? lists what can be typed."
        return None

    def _back(self) -> None:
        self._view = {"episode": "list", "list": "run"}.get(self._view, "runs")

    def _open(self, number: int) -> str | None:
        if self._view == "runs":
            names = self.store.names()
            if not 1 <= number <= len(names):
                return f"There are runs 1 to {len(names)}."
            self._run, self._view = names[number - 1], "run"
            return None
        if self._view != "list":
            return "Numbers open the rows of a list: r, g or e first."
        return self._read(number - 1)

    def _read(self, place: int) -> str | None:
        """Opens the episode, or the first of the group, at a place in the list."""
        found = self._page(max(0, place), 1)
        if not found["rows"] or place < 0:
            return f"There are {found['total']} {self._list}."
        self._episode, self._view, self._offset = found["rows"][0]["key"], "episode", place
        return None

    def _move(self, by: int) -> str | None:
        if self._view == "episode":
            return self._neighbour(by)
        if self._view != "list":
            return "n and p move in a list or between episodes."
        offset = self._offset - self._offset % ROWS + by * ROWS
        if offset < 0 or not self._page(offset, 1)["rows"]:
            return "That is the end of the list."
        self._offset = offset
        return None

    def _neighbour(self, by: int) -> str | None:
        """The next episode of the group, or of the list where it is the group's last."""
        assert self._run is not None
        group = self.store.episode(self._run, self._episode)["group"]
        place = group.index(self._episode) + by
        if self._list == "groups" and 0 <= place < len(group):
            self._episode = group[place]
            return None
        return self._read(self._offset + by)

    # --- what is shown ---------------------------------------------------------------------------

    def _page(self, offset: int, limit: int) -> dict[str, Any]:
        assert self._run is not None
        return self.store.page(self._run, Filter(self._list, self._words), offset, limit, None)

    def _show(self) -> None:
        self.console.print(self._screen())

    def _screen(self) -> RenderableType:
        plain = self.console.options.ascii_only
        if self._view == "runs" or self._run is None:
            return runs_screen(self.store.listed(), self.console.width, plain)
        self.store.run(self._run).read()
        if self._view == "run":
            curves = self.store.run(self._run).measurements.curves()
            return run_screen(self.store.described(self._run), curves, self.console.width, plain)
        if self._view == "list":
            start = self._offset - self._offset % ROWS
            page = self._page(start, ROWS)
            return list_screen(self._list, page["rows"], start, page["total"], self._words)
        return episode_screen(self.store.episode(self._run, self._episode), self._whole)
