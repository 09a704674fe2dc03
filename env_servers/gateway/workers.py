"""The workers of a gateway: processes that are started, asked, watched and replaced; or this process."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from env_servers.gateway.worker import Host
from env_servers.problems import ProblemError

_READY_SECONDS = 180.0
"""for Python to start and to import what the environments need"""
_AT_ONCE = 1 << 16
"""bytes that the connection to a worker takes without waiting for it"""
_CHECK_SECONDS = 0.25
_LONGEST_PAUSE = 30.0
_PLACE_SECONDS = 10.0
"""how long a call waits for a worker to be replaced"""

_PROGRAM = "from env_servers.gateway.worker import main; main()"
"""as a module with -m, it would be imported twice, and Python would say so"""

log = logging.getLogger("env_servers")

Answer = tuple[int, bytes]
"""status and JSON"""


class EnvironmentDiedError(Exception):
    """The call killed its worker, or had to be stopped; the message states what happened."""


class WorkerGoneError(Exception):
    """The worker died because of another call before it answered this one, which may be asked again."""


@dataclass
class _Call:
    body: dict[str, Any]
    seconds: float
    """the longest that it may be executed"""
    answer: asyncio.Future[Answer]


class Worker:
    """A worker process.

    It gets the calls that wait in one message when it has answered the last, says that it begins, and
    answers one after the other. So the first call without an answer is the one that is being executed,
    and the one to blame when the worker dies or hangs.

    Args:
        on_gone: called once when the process is gone.
        modules: those that register environments; imported in the process.
        memory_mb: its address space; 0: no limit.
    """

    def __init__(
        self, on_gone: Callable[[Worker], None], modules: Sequence[str] = (), memory_mb: int = 0
    ) -> None:
        self._on_gone = on_gone
        self._waiting: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._begun = False
        """the worker has read what was sent"""
        self._since = time.monotonic()
        """when it last said something"""
        self._kill_reason = ""
        self._closing = False
        self.sessions = 0
        """environments placed here"""
        self.ready = False
        self.gone = False
        self._connection, theirs = multiprocessing.Pipe()
        settings = {"modules": list(modules), "memory_mb": memory_mb, "parent": os.getpid()}
        arguments = [str(theirs.fileno()), json.dumps(settings)]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection.fileno(), self._receive)
        os.set_blocking(self._connection.fileno(), True)  # uvloop has made it non-blocking

    @property
    def pending(self) -> int:
        return len(self._sent) + len(self._waiting)

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[Answer]:
        """Asks for a call to be executed. The future gives its status and answer.

        It raises ``EnvironmentDiedError`` when this call killed the worker or took longer than
        ``seconds``, ``WorkerGoneError`` when another one did.
        """
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self.gone:
            answer.set_exception(WorkerGoneError())
            return answer
        if not self._waiting:  # the calls of one request are sent together
            self._loop.call_soon(self._send)
        self._waiting.append(_Call(body, seconds, answer))
        return answer

    def _send(self) -> None:
        """Sends the calls that wait, if the worker has nothing to do."""
        if not self.ready or self.gone or self._sent or not self._waiting:
            return
        self._sent.extend(self._waiting)
        self._waiting.clear()
        self._begun, self._since = False, time.monotonic()
        message = json.dumps([call.body for call in self._sent]).encode()
        if len(message) <= _AT_ONCE:
            self._write(message)
        else:
            self._loop.run_in_executor(None, self._write, message)

    def _write(self, message: bytes) -> None:
        with suppress(OSError, TypeError):  # it has died, as reading shows, or is closed already
            self._connection.send_bytes(message)

    def _receive(self) -> None:
        """Takes a message: an answer, or nothing, by which the worker says that it begins."""
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._bury()
            return
        self._since = time.monotonic()
        if message:
            answer = self._sent.popleft().answer
            if not answer.done():
                answer.set_result((int(message[:3]), message[3:]))
        else:
            self.ready, self._begun = True, bool(self._sent)
        if not self._sent:
            self._send()

    def _bury(self) -> None:
        """Fails the calls without an answer, and waits for the process to end."""
        self.gone = True
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        self.process.kill()
        code = self.process.wait()
        how = f"its process was killed by signal {-code}" if code < 0 else "its process ended"
        reason = self._kill_reason or how
        if not self._closing:
            event = {"event": "worker died", "pid": self.process.pid, "reason": reason}
            log.warning(json.dumps(event))
        guilty = self._sent[0] if self._sent and self._begun else None
        for call in (*self._sent, *self._waiting):
            if not call.answer.done():
                blamed = call is guilty
                error = EnvironmentDiedError(reason) if blamed else WorkerGoneError()
                call.answer.set_exception(error)
        self._on_gone(self)

    def check(self) -> None:
        """Kills the process when it hangs. To be called now and then."""
        if self.gone or (self.ready and not self._sent):
            return
        limit = self._sent[0].seconds if self.ready else _READY_SECONDS
        if time.monotonic() - self._since > limit:
            slow = f"it took longer than {limit:g} s"
            self._kill_reason = slow if self.ready else "it did not start"
            self.process.kill()

    def close(self) -> None:
        self._closing = True
        if not self.gone:
            self._bury()


class Fleet:
    """A fixed number of workers; one that dies is replaced."""

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
        for _ in range(self._size):
            self._add()
        self._run(self._watch())

    def _add(self) -> None:
        self.workers.append(Worker(self._on_gone, self._modules, self._memory_mb))

    def _run(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def place(self) -> Worker:
        """The worker for one more environment: the one with the fewest."""
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
                self._add()
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
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self.workers):
            worker.close()
        while self.workers:
            await asyncio.sleep(0.01)


class LocalWorker:
    """Executes a call in this process, at once: for environments that are known not to hang or to die.

    No other request is answered meanwhile, and nothing stops an environment that takes too long.
    """

    def __init__(self) -> None:
        self._host = Host()
        self.sessions = 0
        self.gone = False

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[Answer]:
        """The status and the answer of a call, in a future that is done."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._host.answer(body))
        return future


class LocalFleet:
    """One worker, which is this process."""

    ready, deaths = 1, 0

    def __init__(self) -> None:
        self._worker = LocalWorker()

    async def start(self) -> None:
        """Does nothing: there is no process to start."""

    async def place(self) -> LocalWorker:
        return self._worker

    async def close(self) -> None:
        """Does nothing: there is no process to end."""
