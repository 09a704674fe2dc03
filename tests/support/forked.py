"""Programs in processes forked from one that has imported the trainer: that takes longer than a run."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

PRELOAD = [
    "forked",
    "paw_train.cli.program",
    "paw_train.training.local",
    "transformers.models.llama.modeling_llama",
    "torch.utils.tensorboard",
    "warm",
]
SECONDS = 600
HERE = Path(__file__).resolve().parent
KillAt = tuple[str, int]
"""a function (``module:name`` or ``module:Class:method``) and how many calls of it go well before SIGKILL"""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """exit status; negative: the signal that killed it"""
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Forked:
    """A program that is running.

    Args:
        source: what ``python -c`` would be given; ``arguments`` are ``sys.argv[1:]``.
        folder: where it runs and finds modules first.
        path: where it finds them after that.
        variables: of its environment, beside those of this process.
    """

    def __init__(
        self,
        source: str,
        *arguments: str | Path,
        folder: Path | None = None,
        path: Path | None = None,
        **variables: str,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._logs = TemporaryDirectory()
        places = [str(place) for place in (folder, path) if place is not None]
        given = (source, list(map(str, arguments)), places, {**os.environ, **variables})
        self.process: BaseProcess = context.Process(
            target=_run, args=(self._logs.name, folder, *given)
        )
        found = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        with patch.dict(os.environ, PYTHONPATH=found):  # the first time, what is forked is started
            self.process.start()

    def said(self) -> str:
        log = Path(self._logs.name, "1")
        return log.read_text() if log.exists() else ""

    def wait(self) -> Ended:
        """Its end, which comes within ``SECONDS``."""
        self.process.join(SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        logs = [Path(self._logs.name, name) for name in "12"]
        out, err = (log.read_text() if log.exists() else "" for log in logs)
        self._logs.cleanup()
        assert self.process.exitcode is not None
        return Ended(self.process.exitcode, out, err)


def _run(
    logs: str,
    folder: Path | None,
    source: str,
    arguments: list[str],
    places: list[str],
    variables: dict[str, str],
) -> None:
    for stream, name in ((sys.stdout, "1"), (sys.stderr, "2")):
        with open(Path(logs, name), "w") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = places
    sys.argv = ["-c", *arguments]
    if folder is not None:
        os.chdir(folder)
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})


SMOKE = """
import json, sys
from forked import kill_before
from paw_train.training.local import train_from_recipe

overrides, kill_at = map(json.loads, sys.argv[1:])
if kill_at is not None:
    kill_before(*kill_at)
train_from_recipe("smoke", overrides, quiet=True)
"""

HELD = """
import sys, time
from pathlib import Path
from paw_train.training import local
record = local.append_jsonl
def record_and_wait(*line):
    record(*line)
    print("recorded", flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
local.append_jsonl = record_and_wait
local.train_from_recipe("smoke", sys.argv[2:])
"""
"""waits after each update's record until there is a file, its first argument; the others are settings"""


def run_smoke(overrides: Sequence[str], kill_at: KillAt | None = None) -> Ended:
    """Trains the recipe ``smoke`` in another process."""
    return Forked(SMOKE, json.dumps(list(overrides)), json.dumps(kill_at)).wait()


def kill_before(name: str, calls: int) -> None:
    """Has this process killed by a function's call that comes after so many."""
    module, *path, last = name.split(":")
    place = importlib.import_module(module)
    for part in path:
        place = getattr(place, part)
    real, left = getattr(place, last), calls

    def killing(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(place, last, killing)
