"""The workers of a gateway: so many at a time; one that dies is replaced."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from env_servers.gateway.process import Worker
from env_servers.problems import ProblemError

_CHECK_SECONDS = 0.25
_LONGEST_PAUSE = 30.0
_PLACE_SECONDS = 10.0
"""how long a call waits for a worker to be replaced"""

log = logging.getLogger("env_servers")


class Fleet:
    """Starts, watches and replaces workers.

    Args:
        size: how many.
        modules: imported in each: those that register environments.
        memory_mb: address space of each; 0: no limit.
    """

    def __init__(self, size: int, modules: Sequence[str] = (), memory_mb: int = 0) -> None:
        self._size, self._modules, self._memory_mb = size, list(modules), memory_mb
        self.workers: list[Worker] = []
        self.deaths = 0
        """workers that died unasked"""
        self._fruitless = 0
        """workers in a row that died before they were ready"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Starts the workers."""
        for _ in range(self._size):
            await self._add()
        self._run(self._watch())

    async def _add(self) -> None:
        self.workers.append(await Worker.start(self._on_gone, self._modules, self._memory_mb))

    def _run(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def place(self) -> Worker:
        """The worker for one more environment: the one with the fewest.

        Raises:
            ProblemError: none could be started for a while.
        """
        give_up = time.monotonic() + _PLACE_SECONDS
        while not self.workers:
            if time.monotonic() > give_up:
                raise ProblemError(
                    503, "The gateway cannot start its workers: see its log.", retry_after=2
                )
            await asyncio.sleep(0.05)
        return min(self.workers, key=lambda worker: (worker.sessions, worker.pending))

    @property
    def ready(self) -> int:
        """How many workers can work."""
        return sum(worker.ready for worker in self.workers)

    def _on_gone(self, worker: Worker) -> None:
        self.workers = [other for other in self.workers if other is not worker]
        if self._closed:
            return
        self.deaths += 1
        self._fruitless = 0 if worker.ready else self._fruitless + 1
        pause = min(_LONGEST_PAUSE, 0.5 * 2.0**self._fruitless) if self._fruitless else 0.0
        self._run(self._replace(pause))

    async def _replace(self, pause: float) -> None:
        await asyncio.sleep(pause)
        while not self._closed:
            try:
                await self._add()
                return
            except OSError as error:  # the machine has no room for a process just now
                log.error("No worker could be started: %s", error)
                await asyncio.sleep(_LONGEST_PAUSE)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for worker in self.workers:
                worker.check()

    async def close(self) -> None:
        """Ends all workers."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self.workers):
            worker.close()
        while self.workers:
            await asyncio.sleep(0.01)
