"""The checks in a process of their own: a check that does not end is stopped, and the program goes on.

A thread could not be stopped, and a step that holds Python's lock would stop every other thread too.
"""

from __future__ import annotations

import copy
import faulthandler
import multiprocessing
import os
import re
import signal
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium

from paw_gym.contract.report import CheckResult

TIME_LIMIT = 60.0
"""seconds that one check may take, unless given"""
_MAKING = "making the environment"
_GRACE = 1.0
"""seconds that it is given to end"""
_LATE = 20.0
"""seconds beyond the limit in which it writes down where it is; a busy machine needs more of them"""
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')

Work = Callable[[], Iterator[CheckResult]]


def run_isolated(work: Work, names: Sequence[str], limit: float) -> Iterator[CheckResult]:
    """Runs ``work`` in a subprocess and gives its results as they come.

    If one does not come within the limit, the process and all that it started are ended; that
    check has failed, and those after it are skipped.
    """
    runner = _Runner(work, limit)
    try:
        begun = runner.receive()
    except TimeoutError as error:
        runner.end()
        # named by itself, and reported by the first check, which it kept from starting
        return iter(_stopped(names, f"{_MAKING} {error}", runner.stack))
    except EOFError:
        detail = f"{_MAKING} ended the process ({runner.exit_code()})"
        runner.end()
        return iter(_stopped(names, detail, ""))
    if isinstance(begun, BaseException):
        runner.end()
        raise begun
    return _results(runner, names)


def _results(runner: _Runner, names: Sequence[str]) -> Iterator[CheckResult]:
    try:
        for number in range(len(names)):
            try:
                yield runner.receive()
            except TimeoutError as error:
                yield from _stopped(names[number:], str(error), runner.stack)
                return
            except EOFError:
                detail = f"the process ended in the middle of this check ({runner.exit_code()})"
                yield from _stopped(names[number:], detail, "")
                return
    finally:
        runner.end()


def _stopped(names: Sequence[str], detail: str, stack: str) -> list[CheckResult]:
    reason = f"not run: {names[0]} was stopped before"
    return [
        CheckResult(names[0], "failed", detail, stack),
        *(CheckResult(name, "skipped", reason) for name in names[1:]),
    ]


class _Runner:
    """The subprocess, seen from here."""

    def __init__(self, work: Work, limit: float) -> None:
        self.limit = limit
        self.stack = ""
        """its place when its time was up, as ``faulthandler`` writes it"""
        self._folder = tempfile.TemporaryDirectory(prefix="paw-check-")
        self._dump = Path(self._folder.name) / "stack.txt"
        # forking keeps what was registered or defined in this process: functions, local classes
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self._answers, theirs = context.Pipe(duplex=False)
        # a daemon: it ends with this program, if nobody ends it before
        arguments = (theirs, work, limit, self._dump)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the vector environments fork as well
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def receive(self) -> Any:
        """The next thing that it sends."""
        if self._answers.poll(self.limit) or self._ends_late():
            return self._answers.recv()
        self.end()
        where = _innermost(self.stack)
        raise TimeoutError(
            f"did not end within {self.limit:g} s, the time limit of one check"
            + (f"; it was in {where}" if where else "")
            + ". If the environment is only slow, give it more: paw check --time-limit "
            f"{10 * self.limit:g}, or check_text_env(..., time_limit={10 * self.limit:g})."
        )

    def _ends_late(self) -> bool:
        """Waits until it has written down where it is; says if it has ended instead."""
        for _ in range(int(_LATE / 0.05)):
            if self._answers.poll(0.05):
                return True
            if self._dump.exists() and self._dump.stat().st_size > 0:
                return bool(self._answers.poll(0.05))
        return False

    def exit_code(self) -> str:
        """How it ended, in words."""
        self._process.join(_GRACE)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def end(self) -> None:
        """Ends it and all processes that it started."""
        if self._dump.exists():
            self.stack = self._dump.read_text(encoding="utf-8", errors="replace")
        if self._process.is_alive():
            # time to end by itself, unless it has no reason to: it may be waiting for a thread
            self._process.join(0 if self.stack else _GRACE)
        for sign in ("SIGTERM", "SIGKILL"):
            if self._process.is_alive():
                _signal_group(self._process, sign)
                self._process.join(_GRACE)
        self._answers.close()
        self._folder.cleanup()

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # whose results nobody took
            self.end()


def _signal_group(process: Any, sign: str) -> None:
    if not hasattr(os, "killpg"):
        process.kill()
        return
    try:
        os.killpg(process.pid, getattr(signal, sign))
    except ProcessLookupError:  # it has no group of its own yet, or is gone
        process.kill()


def _serve(answers: Connection, work: Work, limit: float, dump: Path) -> None:
    """The body of the subprocess."""
    multiprocessing.current_process().daemon = False  # vector environments start processes
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, which ends as a whole
    # if it has to be ended, Python's clean-up of shared memory need not complain
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    with open(dump, "w", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(limit, file=file)
        try:
            results = work()
        except Exception as error:  # a wrong argument, or the environment's constructor
            try:
                copy.copy(error)  # made again as the other side makes it
                answers.send(error)
            except Exception:  # its class asks for other arguments than its text, or is a local one
                answers.send(ValueError(f"{type(error).__name__}: {error}"))
            return
        answers.send(_MAKING)
        while True:
            faulthandler.dump_traceback_later(limit, file=file)
            result = next(results, None)
            faulthandler.cancel_dump_traceback_later()
            if result is None:
                return
            answers.send(result)


def _innermost(stack: str) -> str:
    """The innermost frame of the main thread that is neither Python's nor Gymnasium's."""
    main = stack.rpartition("most recent call first")[2]
    frames = [match for line in main.splitlines() if (match := _FRAME.fullmatch(line))]
    skipped = (sysconfig.get_path("stdlib") + os.sep, str(Path(gymnasium.__file__).parent))
    site = sysconfig.get_path("purelib") + os.sep
    for frame in frames:
        file = frame["file"]
        if not file.startswith(skipped) or (file.startswith(site) and skipped[1] not in file):
            return f"{file}, line {frame['line']}, {frame['name']}"
    return ""
