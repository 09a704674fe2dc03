"""Rollouts beside training: sampled in a thread, a bounded number ahead of what is learned from.

Weights are sent between rollouts only, so that all responses of a rollout are one policy's. With
``ahead`` rollouts that nobody has taken, counting the one being sampled, the policy of a rollout is at most
``ahead`` updates behind the one that learns from it: when rollout j begins, at least j - ahead have been
trained on and sent, and the one after them has been taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class RolloutPipeline(Generic[T]):
    """Samples in a thread that begins with the first ``take``.

    Args:
        rollouts: the next one is sampled by ``next``, which only that thread calls.
        ahead: largest number of rollouts that have begun and were not taken, 1 or more.
    """

    def __init__(self, rollouts: Iterator[T], ahead: int) -> None:
        self.waited = 0.0
        """seconds that ``take`` and ``paused`` have waited for rollouts"""
        self._rollouts, self._ahead = rollouts, ahead
        self._ready: deque[T] = deque()
        self._sampling = self._paused = self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def take(self) -> T:
        """The next rollout, as soon as it is there; the one after it may begin.

        Raises:
            BaseException: the first error of a rollout, after the rollouts before it.
            RuntimeError: there are no more.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
                self._thread.start()
            self._wait(lambda: bool(self._ready) or self._ended)
            if not self._ready:
                self._raise()
                raise RuntimeError("All rollouts were taken.")
            taken = self._ready.popleft()
            self._changed.notify_all()
            return taken

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Waits for the rollout under way; none begins inside."""
        with self._changed:
            self._paused = True
            self._wait(lambda: not self._sampling)
        try:
            self._raise()
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def _run(self) -> None:
        while self._begin():
            try:
                rollout = [next(self._rollouts)]
                error = None
            except StopIteration:
                rollout, error = [], None
            except BaseException as raised:  # handed to the thread that waits for the rollout
                rollout, error = [], raised
            with self._changed:
                self._sampling = False
                self._ready += rollout
                self._error = error
                self._ended = not rollout
                self._changed.notify_all()

    def _begin(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or (not self._paused and len(self._ready) < self._ahead)
            )
            self._sampling = not self._ended
            return self._sampling

    def _wait(self, reached: Callable[[], bool]) -> None:
        started = time.perf_counter()
        self._changed.wait_for(reached)
        self.waited += time.perf_counter() - started

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
