"""Copies of this process that share one small model's work on a CPU.

PyTorch's threads divide each operation, and those of a small model are too short for that. A fork that takes
half of the episodes, or half of a batch, has nothing to wait for.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_MOST = 8
"""processes; more have not been measured"""
_LARGEST = 20_000_000
"""parameters of a model; the operations of larger ones are long enough to be divided among threads"""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux"""


def processes_for(model: Any) -> int:
    """Number of processes that share this model's work; 1 where threads do better, or forks are not safe."""
    small = sum(p.numel() for p in model.parameters()) <= _LARGEST
    on_cpu = next(model.parameters()).device.type == "cpu"
    # where a device is in sight, autograd refuses to run in a fork; outside Linux, BLAS does not stand one
    safe = sys.platform == "linux" and not torch.accelerator.is_available()
    alone = not multiprocessing.current_process().daemon
    return min(torch.get_num_threads(), _MOST) if small and on_cpu and safe and alone else 1


def side_by_side(works: Sequence[Callable[[], T]]) -> list[T]:
    """Results of some functions at the same time: the first runs here, each other in a fork of its own.

    Each process has one of torch's threads. Of a fork, nothing but the result remains. An exception in any of
    them is raised here, and ends the others.
    """
    if len(works) == 1:
        return [works[0]()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context, forks = multiprocessing.get_context("fork"), []
    try:
        for work in works[1:]:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_give, args=(work, theirs, os.getpid()), daemon=True)
            with warnings.catch_warnings():
                # of threads that hold locks: no fork uses what they hold
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            forks.append((process, ours))
        found = [works[0]()]
        for process, pipe in forks:
            try:
                result, error = pipe.recv()
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"A process that shared the model's work has died (exit code {process.exitcode}; -9: "
                    "killed, as for want of memory). The same command goes on from what was saved; with "
                    "threads=1 there is one process."
                ) from None
            if error is not None:
                raise error
            found.append(result)
        return found
    finally:
        torch.set_num_threads(threads)
        for process, pipe in forks:
            process.kill()
            process.join()
            pipe.close()


def _give(work: Callable[[], Any], pipe: Connection, parent: int) -> None:
    """The body of a fork."""
    # Ctrl-C goes to the parent, which finishes its step
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return
    gc.freeze()  # the parent's open files are not to be written and closed here
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        pipe.send_bytes(_Message.dumps((work(), None)))
    except Exception as error:
        error.add_note(traceback.format_exc())
        pipe.send((None, error))


class _Message(ForkingPickler):
    """Tensors travel as arrays: torch would make a file of shared memory for each."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return torch.from_numpy, (thing.detach().numpy(),)
        return NotImplemented
