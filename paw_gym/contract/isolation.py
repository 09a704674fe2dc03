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
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paw_gym.contract.subject import CheckResult, not_run
from paw_gym.internals.validation import is_authors

TIME_LIMIT = 60.0
"""seconds that one check may take, unless given"""
_GRACE = 1.0
"""seconds that it is given to end"""
_LATE = 5.0
"""seconds beyond the limit in which it writes down where it is"""
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')

Work = Callable[[], Iterator[CheckResult]]


class _EndedError(Exception):
    """(what happened, the stack): the process took too long, or it ended by itself."""


def run_isolated(work: Work, names: Sequence[str], limit: float) -> Iterator[CheckResult]:
    """Runs ``work`` in a subprocess and gives its results as they come.

    If one does not come within the limit, the process and all that it started are ended; that
    check has failed, and those after it are skipped.
    """
    runner = _Runner(work, limit)
    try:
        begun = runner.receive()
    except _EndedError as ended:
        # reported by the first check, which it kept from starting
        return iter(_stopped(names, ended, "making the environment "))
    if begun is not None:
        runner.end()
        raise begun
    return _results(runner, names)


def _results(runner: _Runner, names: Sequence[str]) -> Iterator[CheckResult]:
    left = list(names)
    try:
        while left:
            yield runner.receive()
            del left[0]
    except _EndedError as ended:
        yield from _stopped(left, ended)
    finally:
        runner.end()


def _stopped(names: Sequence[str], ended: _EndedError, what: str = "") -> list[CheckResult]:
    detail, stack = ended.args
    return not_run(names, what + detail, f"{names[0]} was stopped before", stack)


class _Runner:
    """The subprocess, seen from here."""

    def __init__(self, work: Work, limit: float) -> None:
        self.limit = limit
        self._folder = tempfile.TemporaryDirectory(prefix="paw-check-")
        self._dump = Path(self._folder.name) / "stack.txt"
        self._dump.touch()
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
        """The next thing that it sends, or ``_EndedError``; then it is ended."""
        try:
            if self._answers.poll(self.limit + _LATE):
                return self._answers.recv()
        except EOFError:
            self._process.join(_GRACE)
            code = self._process.exitcode
            killed = code is not None and code < 0
            how = f"killed by {signal.Signals(-code).name}" if killed else f"exit code {code}"
            self.end()
            raise _EndedError(f"ended the process ({how})", "") from None
        stack = self._dump.read_text(encoding="utf-8", errors="replace")
        self.end(0 if stack else _GRACE)  # it may be waiting for a thread
        where = _innermost(stack)
        more = f"{10 * self.limit:g}"
        raise _EndedError(
            f"did not end within {self.limit:g} s, the time limit of one check"
            + (f"; it was in {where}" if where else "")
            + f". If the environment is only slow, give it more: paw check --time-limit {more}, or "
            f"check_text_env(..., time_limit={more}).",
            stack,
        )

    def end(self, grace: float = _GRACE) -> None:
        """Ends it, if it does not end by itself, and all processes that it started."""
        self._process.join(grace)
        for sign in ("SIGTERM", "SIGKILL"):
            if self._process.is_alive():
                try:
                    os.killpg(self._process.pid, getattr(signal, sign))
                except (
                    AttributeError,
                    ProcessLookupError,
                ):  # no groups on Windows; none yet, or gone
                    self._process.kill()
                self._process.join(_GRACE)
        self._answers.close()
        self._folder.cleanup()

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # whose results nobody took
            self.end()


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
        answers.send(None)  # the environment is made
        while True:
            faulthandler.dump_traceback_later(limit, file=file)
            result = next(results, None)
            faulthandler.cancel_dump_traceback_later()
            if result is None:
                return
            answers.send(result)


def _innermost(stack: str) -> str:
    """The innermost frame of the main thread that is in the environment's own code."""
    for frame in _FRAME.finditer(stack.rpartition("most recent call first")[2]):
        if is_authors(frame["file"]):
            return f"{frame['file']}, line {frame['line']}, {frame['name']}"
    return ""
