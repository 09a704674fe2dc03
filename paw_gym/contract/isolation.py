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
from contextlib import suppress
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paw_gym.contract.subject import CheckResult, not_run
from paw_gym.internals.validation import is_authors

TIME_LIMIT = 60.0
"""seconds that one check may take, unless given"""
_GRACE = 1.0
"""seconds that the process is given to end"""
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')

Work = Callable[[], Iterator[CheckResult]]


def run_isolated(work: Work, names: Sequence[str], limit: float) -> Iterator[CheckResult]:
    """Runs ``work`` in a subprocess and gives its results as they come. At the limit the process and all that
    it started are ended; the check that it was at has failed, and those after it are skipped."""
    results = _results(work, list(names), limit)
    first = next(results, None)  # raises what a wrong argument raises
    return results if first is None else chain([first], results)


def _results(work: Work, left: list[str], limit: float) -> Iterator[Any]:
    """``None`` once the environment is made, then a result for each check."""
    folder = tempfile.TemporaryDirectory(prefix="paw-check-")
    dump = Path(folder.name) / "stack.txt"
    # forking keeps what was registered or defined in this process: functions, local classes
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    answers, theirs = context.Pipe(duplex=False)
    # a daemon: it ends with this program, if nobody ends it before
    process = context.Process(target=_serve, args=(theirs, work, limit, dump), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside threads; the vector environments fork as well
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    what = "making the environment "  # reported by the first check, which it kept from starting
    try:
        while left:
            received = _received(process, answers)
            if isinstance(received, BaseException):
                raise received
            yield received
            if received is not None:
                del left[0]
            what = ""
    except EOFError:
        stack = dump.read_text(encoding="utf-8", errors="replace") if dump.exists() else ""
        detail = what + _why_ended(process, stack, limit)
        yield from not_run(left, detail, f"{left[0]} was stopped before", stack)
    finally:
        _end(process)
        answers.close()
        folder.cleanup()


def _received(process: Any, answers: Connection) -> Any:
    """The next thing that the process sends; ``EOFError``: it has ended."""
    # the pipe's end alone does not tell: processes that it started hold it open
    while process.is_alive() and not answers.poll(0.1):
        pass
    if not answers.poll():
        raise EOFError
    return answers.recv()


def _why_ended(process: Any, stack: str, limit: float) -> str:
    if not stack:
        process.join(_GRACE)
        code = process.exitcode
        killed = code is not None and code < 0
        how = f"killed by {signal.Signals(-code).name}" if killed else f"exit code {code}"
        return f"ended the process ({how})"
    where, more = _innermost(stack), f"{10 * limit:g}"
    return (
        f"did not end within {limit:g} s, the time limit of one check"
        + (f"; it was in {where}" if where else "")
        + f". If the environment is only slow, give it more: paw check --time-limit {more}, or "
        f"check_text_env(..., time_limit={more})."
    )


def _end(process: Any) -> None:
    """Ends the process, if it does not end by itself, and all processes that it started."""
    process.join(_GRACE)
    with suppress(AttributeError, ProcessLookupError):  # no groups on Windows; all are gone
        os.killpg(process.pid, signal.SIGTERM)  # which Python's clean-up of shared memory ignores
    process.join(_GRACE)
    process.kill()
    process.join(_GRACE)


def _serve(answers: Connection, work: Work, limit: float, dump: Path) -> None:
    """The body of the subprocess."""
    multiprocessing.current_process().daemon = False  # vector environments start processes
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, which ends as a whole
    # if it has to be ended, Python's clean-up of shared memory need not complain
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    with open(dump, "w", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(limit, exit=True, file=file)
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
            faulthandler.dump_traceback_later(limit, exit=True, file=file)
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
