"""Runs of ``smoke`` in processes of their own, which kill themselves at a chosen call.

The processes are forked from one that has imported what a run needs: that takes longer than such a run.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PRELOAD = ["killed_runs", "paw_train.training.local", "transformers.models.llama.modeling_llama"]
SECONDS = 300
KillAt = tuple[str, int]
"""a function (``module:name`` or ``module:Class:method``) and how many calls of it go well before SIGKILL"""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """exit status; negative: the signal that killed it"""
    output: str


def run_smoke(overrides: Sequence[str], kill_at: KillAt | None = None) -> Ended:
    """Trains the recipe ``smoke`` in another process.

    Args:
        overrides: of its settings.
        kill_at: the call at which it is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        process = context.Process(target=_train, args=(log, list(overrides), kill_at))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return Ended(process.exitcode, log.read_text() if log.exists() else "")


def _train(log: Path, overrides: list[str], kill_at: KillAt | None) -> None:
    with log.open("w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from paw_train.training.local import train_from_recipe

    if kill_at is not None:
        _arm(*kill_at)
    try:
        train_from_recipe("smoke", overrides, quiet=True)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        sys.exit(1)


def _arm(name: str, calls: int) -> None:
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
