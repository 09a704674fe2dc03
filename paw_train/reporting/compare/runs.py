"""Runs of a grid: their state by the files in their folders, and their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Self

from rich.markup import escape

from paw_gym.internals.locks import ProcessLock, is_held
from paw_train.algorithms.estimator import ADVANTAGES
from paw_train.evaluation.terminal import Display
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.reporting.compare.grid import PlannedRun
from paw_train.settings import WITHOUT_EFFECT, Settings
from paw_train.settings.base import flatten
from paw_train.settings.run import existing, read_recorded, shared_evaluation, shared_warm_start

_IRRELEVANT = (*WITHOUT_EFFECT, "name", "threads")
"""settings that may differ although the run is the same; threads change only the last digits"""


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run's result depends on, without those of a part that is switched off."""
    kept: dict[str, Any] = json.loads(json.dumps(_of_engine(settings)))
    for name in _IRRELEVANT:
        *parents, last = name.split(".")
        reduce(dict.__getitem__, parents, kept).pop(last, None)
    if not kept["world_model"]["enabled"]:
        kept["world_model"] = {"enabled": False}
    learning = kept.pop("world_model_learning", {"method": "off"})
    if learning["method"] != "off":
        if learning["method"] == "rwml":
            learning.pop("sft", None)
        elif not learning["easy_samples"]:
            learning.pop("rwml", None)
        kept["world_model_learning"] = learning
    estimator = ADVANTAGES.get(kept["algorithm"]["name"])  # from a package that may be gone
    if estimator is not None and not estimator.needs_critic:
        kept["algorithm"].pop("critic", None)
    return kept


def _of_engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, without the cluster's if the run is not on one."""
    return {k: v for k, v in settings.items() if k != "openrlhf" or settings.get("engine") == k}


def differing_setting(found: Mapping[str, Any], run: PlannedRun) -> str | None:
    """The first setting (dotted) in which a record, completed by defaults, differs from a planned run."""
    try:
        known = Settings.read(_of_engine(existing(found)))
    except ValueError as error:
        return str(error)
    changed = _first_difference(known, run.settings)
    if changed is None or not changed.startswith("cloning."):
        return changed
    return _first_difference(known, run.as_run)  # the environment may have shortened the warm start


def _first_difference(first: Settings, second: Settings) -> str | None:
    recorded, planned = (dict(flatten(relevant(s.to_dict()))) for s in (first, second))
    names = {**recorded, **planned}
    return next((name for name in names if recorded.get(name) != planned.get(name)), None)


def check_settings(folder: Path, run: PlannedRun) -> None:
    """Raises ``ValueError`` if a folder holds a run with other settings; names both."""
    config = folder / "config.json"
    if not config.exists():
        return
    changed = differing_setting(read_recorded(config), run)
    if changed is not None:
        raise ValueError(
            f"Run {run.name} was begun with other settings (first difference: {changed}), and a "
            f"comparison must not mix them. Delete {folder} to run it again, or give the grid "
            "another name (--name)."
        )


def is_finished(folder: Path) -> bool:
    """True if a run has ended: the evaluation after RL is its last file."""
    return (folder / "eval_after.json").exists()


def updates_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def shared_places(run: PlannedRun) -> tuple[Path, ...]:
    """The folders of what a run shares with others: its warm start, and the warm start's evaluation."""
    places = (shared_warm_start(run.as_run), shared_evaluation(run.as_run))
    return tuple(place for place in places if place is not None)


def is_made(place: Path) -> bool:
    """True if a shared warm start, or its evaluation, exists."""
    return (place / "result.json").exists() or find_checkpoint(place) is not None


_POLL_SECONDS = 0.5
_LOG_TAIL = 15

Command = Callable[[PlannedRun], list[str]]


@dataclass(frozen=True)
class Failure:
    """A run whose process failed."""

    run: str
    code: int
    """exit status; negative: the signal that ended it"""
    log: Path
    tail: str
    """the log's last lines"""


class Progress(Display):
    """Shows a grid's progress: a bar where there is a terminal, and lines everywhere."""

    def say(self, text: str) -> None:
        super().say(f"{time.strftime('%H:%M:%S')} {text}")

    def failure(self, failure: Failure) -> None:
        self.console.print(
            f"\n[bold red]{failure.run} failed[/bold red]; the end of {escape(str(failure.log))}:"
        )
        self.console.print(failure.tail, markup=False, soft_wrap=True)


def train_command(run: PlannedRun, recipe: str) -> list[str]:
    """The command of a run's process: ``paw train`` with its settings."""
    return [sys.executable, "-P", "-m", "paw_train.cli", "train", recipe, *run.overrides]


class Runner:
    """Executes the unfinished runs in a list; its attributes say how far it is.

    After a kill at any moment, the same call continues: finished runs are kept, begun ones resume from their
    own checkpoints, and a run whose process outlived the killed parent is waited for.
    """

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        folder: Path,
        jobs: int,
        command: Command,
        watcher: Progress,
        on_finish: Callable[[PlannedRun], None] = lambda run: None,
    ) -> None:
        for run in runs:
            check_settings(folder / run.name, run)
        self.folder, self.jobs, self.command = folder, jobs, command
        self.watcher, self.on_finish = watcher, on_finish
        self.runs = runs
        self.waiting = [run for run in runs if not is_finished(folder / run.name)]
        self.running: dict[str, PlannedRun] = {}
        """by name: the runs that this process, or an earlier one, has started"""
        self.finished = len(runs) - len(self.waiting)
        self.failures: list[Failure] = []
        self.stopping = False
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._shared = {run.name: shared_places(run) for run in runs}
        self._asked = 0

    def run(self) -> Self:
        """Works until every run has finished or failed, or until Ctrl-C or SIGTERM."""
        bar = self.watcher.bar("runs finished", len(self.runs))
        with _signals(self._ask), bar as advance:
            for run in self.waiting:
                if is_held(self._lock_path(run)):
                    self._adopt(run)
            while self._children if self.stopping else self.running or self.waiting:
                self._reap()
                while not self.stopping and len(self.running) < self.jobs:
                    if not self._start_next():
                        break
                advance(self.finished, self._at_work())
                time.sleep(_POLL_SECONDS)
        return self

    def _at_work(self) -> str:
        parts = [f"{len(self.failures)} failed"] if self.failures else []
        for name, run in self.running.items():
            parts.append(
                f"{name} update {updates_done(self.folder / name)} of {run.settings.updates}"
            )
        return "; ".join(parts)

    # --- starting --------------------------------------------------------------------------------

    def _start_next(self) -> bool:
        for run in self.waiting:
            if run.name in self.running or self._waits_for_warm_start(run):
                continue
            lock = ProcessLock(self._lock_path(run))
            try:
                if lock.take():
                    self._start(run, lock)
                else:
                    self._adopt(run)
            finally:
                lock.close()
            return True
        return False

    def _waits_for_warm_start(self, run: PlannedRun) -> bool:
        """True while another run is making the warm start, or its evaluation, that this one will share."""
        missing = {place for place in self._shared[run.name] if not is_made(place)}
        return any(missing.intersection(self._shared[name]) for name in self.running)

    def _start(self, run: PlannedRun, lock: ProcessLock) -> None:
        log = self._log_path(run)
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(run.settings.threads or 1)
        with log.open("ab") as output:
            self._children[run.name] = subprocess.Popen(
                self.command(run),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads, "COLUMNS": "160"},
                # its own session: a Ctrl-C in the terminal reaches the parent, which asks the child
                start_new_session=True,
                pass_fds=lock.descriptors,
            )
        begun = (self.folder / run.name / "config.json").exists()
        self.watcher.say(f"{run.name}: {'goes on' if begun else 'starts'}")
        self.running[run.name] = run

    def _adopt(self, run: PlannedRun) -> None:
        self.watcher.say(f"{run.name}: another process is running it already; waiting for that one")
        self.running[run.name] = run

    # --- ending ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        for name, run in list(self.running.items()):
            child = self._children.get(name)
            # without a child, it is an earlier process's
            at_work = is_held(self._lock_path(run)) if child is None else child.poll() is None
            if at_work:
                continue
            del self.running[name]
            self._children.pop(name, None)
            if is_finished(self.folder / name):
                self.waiting.remove(run)
                self.finished += 1
                self.on_finish(run)
                self.watcher.say(f"{name}: finished")
            elif child is not None and self.stopping:
                self.watcher.say(f"{name}: stopped; it goes on from its checkpoint next time")
            elif child is not None:
                self.waiting.remove(run)
                log, code = self._log_path(run), child.returncode
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                self.failures.append(Failure(name, code, log, "\n".join(lines[-_LOG_TAIL:])))
                self.watcher.say(f"{name}: failed ({_meaning(code)}); the others go on")

    def _ask(self, *_: object) -> None:
        """Ctrl-C: first stop after the current update, then at once, then kill."""
        self._asked += 1
        self.stopping = True
        number = signal.SIGTERM if self._asked < 3 else signal.SIGKILL
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(number)
        if self._children and self._asked == 1:
            self.watcher.say("Stopping after the current updates (again: at once) ...")

    def _lock_path(self, run: PlannedRun) -> Path:
        return self.folder / "locks" / f"{run.name}.lock"

    def _log_path(self, run: PlannedRun) -> Path:
        return self.folder / "logs" / f"{run.name}.log"


def _meaning(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == 0:
        return "it ended without an evaluation after RL"
    return f"exit status {code}"


@contextmanager
def _signals(handler: Callable[..., None]) -> Iterator[None]:
    """Calls a function on Ctrl-C and SIGTERM, if this is the main thread."""
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    previous = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, earlier in previous:
            signal.signal(number, earlier)
