"""Runs the cells of a grid, each in its own process, some at once, in an order that is useful early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paw_train.reporting.compare.cells import check_settings, is_finished, is_made, warm_start_place
from paw_train.reporting.compare.grid import Cell
from paw_train.reporting.compare.locks import CellLock, is_held

_POLL_SECONDS = 0.5
_LOG_TAIL = 15

Command = Callable[[Cell], list[str]]


class Watcher(Protocol):
    """Is told what happens."""

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, work: Work) -> None:
        """The present state; called about twice a second."""


@dataclass(frozen=True)
class Failure:
    """A cell whose process ended badly."""

    cell: str
    code: int
    """exit status; negative: the signal that ended it"""
    log: Path
    tail: str
    """the log's last lines"""


@dataclass
class Work:
    """How far a grid has come."""

    cells: Sequence[Cell]
    waiting: list[Cell] = field(default_factory=list)
    running: dict[str, Cell] = field(default_factory=dict)
    """by name: the cells that this process, or one before it, has started"""
    finished: int = 0
    failures: list[Failure] = field(default_factory=list)
    stopping: bool = False


def train_command(cell: Cell, recipe: str) -> list[str]:
    """What a cell's process executes: ``paw train`` with the cell's settings."""
    return [sys.executable, "-m", "paw_train.cli", "train", recipe, *cell.overrides]


class Runner:
    """Runs what is left of a list of cells.

    Killed at any moment and made anew it goes on: finished cells stay, begun ones resume from their
    own checkpoints, and a cell whose process outlived the killed parent is waited for.

    Args:
        cells: the cells to run, in the order wanted; those that are finished are passed over.
        folder: of the comparison; a cell's run is in the subfolder with its name.
        jobs: processes at once.
        command: what a cell's process executes.
        watcher: is told what happens.
        on_finish: called after each cell that finishes.

    Raises:
        ValueError: a cell's folder holds a run with other settings.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        jobs: int,
        command: Command,
        watcher: Watcher,
        on_finish: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        for cell in cells:
            check_settings(folder / cell.name, cell)
        self.folder, self.jobs, self.command = folder, jobs, command
        self.watcher, self.on_finish = watcher, on_finish
        waiting = [cell for cell in cells if not is_finished(folder / cell.name)]
        self.work = Work(cells, waiting, finished=len(cells) - len(waiting))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._shared = {cell.name: warm_start_place(cell) for cell in cells}
        self._asked = 0

    def run(self) -> Work:
        """Works until every cell has finished or failed, or until it is asked to stop."""
        work = self.work
        with _signals(self._ask):
            for cell in work.waiting:
                if is_held(self._lock_path(cell)):
                    self._adopt(cell)
            while self._children if work.stopping else work.running or work.waiting:
                self._reap()
                while not work.stopping and len(work.running) < self.jobs:
                    if not self._start_next():
                        break
                self.watcher.show(work)
                time.sleep(_POLL_SECONDS)
        return work

    # --- starting --------------------------------------------------------------------------------

    def _start_next(self) -> bool:
        """Starts the first cell that may run; False when there is none."""
        for cell in self.work.waiting:
            if cell.name in self.work.running or self._waits_for_warm_start(cell):
                continue
            lock = CellLock(self._lock_path(cell))
            try:
                if lock.take():
                    self._start(cell, lock)
                else:
                    self._adopt(cell)
            finally:
                lock.close()
            return True
        return False

    def _waits_for_warm_start(self, cell: Cell) -> bool:
        """Whether another cell is making the warm start that this one will share."""
        place = self._shared[cell.name]
        if place is None or is_made(place):
            return False
        return any(self._shared[name] == place for name in self.work.running)

    def _start(self, cell: Cell, lock: CellLock) -> None:
        log = self._log_path(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(cell.settings.threads or 1)
        with log.open("ab") as output:
            self._children[cell.name] = subprocess.Popen(
                self.command(cell),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads, "COLUMNS": "160"},
                # its own session: a Ctrl-C in the terminal reaches the parent, which asks the child
                start_new_session=True,
                pass_fds=lock.descriptors,
            )
        begun = (self.folder / cell.name / "config.json").exists()
        self.watcher.say(f"{cell.name}: {'goes on' if begun else 'starts'}")
        self.work.running[cell.name] = cell

    def _adopt(self, cell: Cell) -> None:
        self.watcher.say(
            f"{cell.name}: another process is running it already; waiting for that one"
        )
        self.work.running[cell.name] = cell

    # --- ending ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        for name, cell in list(self.work.running.items()):
            child = self._children.get(name)
            if child is None:
                if not is_held(self._lock_path(cell)):
                    self._adopted_ended(cell)
            elif child.poll() is not None:
                del self._children[name]
                self._ended(cell, child.returncode)

    def _adopted_ended(self, cell: Cell) -> None:
        del self.work.running[cell.name]
        if is_finished(self.folder / cell.name):
            self._finished(cell)

    def _ended(self, cell: Cell, code: int) -> None:
        del self.work.running[cell.name]
        if is_finished(self.folder / cell.name):
            self._finished(cell)
        elif self.work.stopping:
            self.watcher.say(f"{cell.name}: stopped; it goes on from its checkpoint next time")
        else:
            self.work.waiting.remove(cell)
            log = self._log_path(cell)
            failure = Failure(cell.name, code, log, _tail(log))
            self.work.failures.append(failure)
            self.watcher.say(f"{cell.name}: failed ({_meaning(code)}); the others go on")

    def _finished(self, cell: Cell) -> None:
        self.work.waiting.remove(cell)
        self.work.finished += 1
        self.on_finish(cell)
        self.watcher.say(f"{cell.name}: finished")

    def _ask(self, *_: object) -> None:
        """Ctrl-C: first stop after the current update, then at once, then kill."""
        self._asked += 1
        self.work.stopping = True
        number = signal.SIGTERM if self._asked < 3 else signal.SIGKILL
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(number)
        if self._children and self._asked == 1:
            self.watcher.say("Stopping after the current updates (again: at once) ...")

    def _lock_path(self, cell: Cell) -> Path:
        return self.folder / "locks" / f"{cell.name}.lock"

    def _log_path(self, cell: Cell) -> Path:
        return self.folder / "logs" / f"{cell.name}.log"


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL:])


def _meaning(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == 0:
        return "it ended without an evaluation after RL"
    return f"exit status {code}"


class _signals:
    """Leads Ctrl-C and SIGTERM to a function while it is entered."""

    def __init__(self, handler: Callable[..., None]) -> None:
        self.handler = handler
        self.previous: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self.handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
