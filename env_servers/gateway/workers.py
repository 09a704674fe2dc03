"""The workers of a gateway: processes that are started, asked, watched and replaced; or this process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from env_servers.gateway.worker import LOST, OK, Host
from env_servers.problems import ProblemError

_READY_SECONDS = 180.0
"""for Python to start and to import what the environments need"""
_LONGEST_LINE = 1 << 30
"""bytes of an answer"""
_LONGEST_PAUSE = 30.0
_PLACE_ATTEMPTS = 200
_PROGRAM = "from env_servers.gateway.worker import main; main()"
"""as a module with -m, it would be imported twice, and Python would say so"""

log = logging.getLogger("env_servers")


class EnvironmentDiedError(Exception):
    """The environment raised, killed its worker, or had to be stopped; the message states what happened."""


class WorkerGoneError(Exception):
    """The worker died because of another call before it answered this one, which may be asked again."""


@dataclass
class _Call:
    body: dict[str, Any]
    seconds: float
    """the longest that it may be executed"""
    answer: asyncio.Future[bytes]


def _settle(answer: asyncio.Future[bytes], status: int, content: bytes) -> None:
    if answer.done():  # whoever asked has hung up
        return
    if status == OK:
        answer.set_result(content)
        return
    said = json.loads(content)
    lost = EnvironmentDiedError(said["detail"])
    answer.set_exception(lost if status == LOST else ProblemError(status, **said))


class Worker:
    """A worker process.

    It gets the calls that wait in one line when it has answered the last, says that it begins, and
    answers one after the other. So the first call without an answer is the one that is being executed,
    and the one to blame when the worker dies or hangs.
    """

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self.calls: deque[_Call] = deque()
        """those that have no answer"""
        self._wake = asyncio.Event()
        """there are calls, or the process has ended"""
        self._running: _Call | None = None
        self.sessions = 0
        """environments placed here"""
        self.ready = self.gone = False

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[bytes]:
        """Asks for a call to be executed; the future gives the JSON of its answer.

        It raises ``ProblemError`` when the environment refused, ``EnvironmentDiedError`` when it raised,
        killed the worker or took longer than ``seconds``, ``WorkerGoneError`` when another one did.
        """
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.gone:
            answer.set_exception(WorkerGoneError())
        else:
            self.calls.append(_Call(body, seconds, answer))
            self._wake.set()
        return answer

    async def run(self) -> str:
        """Gives the process calls until it has died; how it died."""
        ended = asyncio.create_task(self._process.wait())
        ended.add_done_callback(lambda _: self._wake.set())
        reason = ""
        try:
            with suppress(EOFError):
                await self._execute()
        except TimeoutError:
            slow = f"it took longer than {self.calls[0].seconds:g} s" if self.ready else ""
            reason = slow or "it did not start"
        except Exception as problem:  # a pipe may close before its process is seen to end
            log.warning("The way to a worker failed: %r", problem)
        finally:
            self.gone = True
            self._stdin.close()
            if self._process.returncode is None:
                with suppress(ProcessLookupError):  # Process.kill would take its status away
                    os.kill(self._process.pid, signal.SIGKILL)
            code = await ended
            how = f"its process was killed by signal {-code}" if code < 0 else "its process ended"
            reason = reason or how
            for call in self.calls:
                blamed = call is self._running
                error = EnvironmentDiedError(reason) if blamed else WorkerGoneError()
                if not call.answer.done():
                    call.answer.set_exception(error)
        return reason

    async def _execute(self) -> None:
        await self._line(_READY_SECONDS)
        self.ready = True
        while True:
            await self._wake.wait()  # the calls of one request come together
            self._wake.clear()
            if not self.calls:
                raise EOFError
            together = len(self.calls)
            bodies = [call.body for call in self.calls]
            self._stdin.write(json.dumps(bodies).encode() + b"\n")
            await self._line(self.calls[0].seconds)
            for _ in range(together):
                self._running = self.calls[0]
                line = await self._line(self._running.seconds)
                _settle(self.calls.popleft().answer, int(line[:3]), line[3:-1])
            self._running = None

    async def _line(self, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            line = await self._stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line


class Fleet:
    """A fixed number of workers; one that dies is replaced.

    Args:
        modules: those that register environments; imported in each process.
        memory_mb: the address space of a process; 0: no limit.
    """

    def __init__(self, size: int, modules: Sequence[str] = (), memory_mb: int = 0) -> None:
        self._size, self._modules, self._memory_mb = size, list(modules), memory_mb
        self.workers: list[Worker] = []
        self.deaths = 0
        """workers that died unasked"""

    async def run(self) -> None:
        """Keeps the workers running, until it is cancelled."""
        kept = (self._keep_one() for _ in range(self._size))
        await asyncio.gather(*kept, return_exceptions=True)  # or it would wait for the first alone

    async def _keep_one(self) -> None:
        settings = {"modules": self._modules, "memory_mb": self._memory_mb, "parent": os.getpid()}
        command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(settings)]
        fruitless = 0
        while True:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_LONGEST_LINE
                )
            except (OSError, RuntimeError) as error:  # no room for a process just now
                log.error("No worker could be started: %s", error)
                await asyncio.sleep(_LONGEST_PAUSE)
                continue
            worker = Worker(process)
            self.workers.append(worker)
            try:
                reason = await worker.run()
            finally:
                self.workers.remove(worker)
            self.deaths += 1
            event = {"event": "worker died", "pid": process.pid, "reason": reason}
            log.warning(json.dumps(event))
            fruitless = 0 if worker.ready else fruitless + 1
            if fruitless:
                await asyncio.sleep(min(_LONGEST_PAUSE, 0.5 * 2.0**fruitless))

    async def place(self) -> Worker:
        """The worker for one more environment: the one with the fewest."""
        for _ in range(_PLACE_ATTEMPTS):
            if self.workers:
                return min(self.workers, key=lambda worker: (worker.sessions, len(worker.calls)))
            await asyncio.sleep(0.05)  # one that died is being replaced
        raise ProblemError(503, "The gateway cannot start its workers: see its log.", retry_after=2)

    @property
    def ready(self) -> int:
        return sum(worker.ready for worker in self.workers)


class LocalFleet:
    """Executes calls in this process, at once: for environments that are known not to hang or to die.

    No other request is answered meanwhile, and nothing stops an environment that takes too long.
    """

    ready, deaths, gone = 1, 0, False

    def __init__(self) -> None:
        self._host = Host()
        self.sessions = 0

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[bytes]:
        """The answer to a call, in a future that is done."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        _settle(answer, *self._host.answer(body))
        return answer

    async def place(self) -> LocalFleet:
        return self

    async def run(self) -> None:
        """Does nothing: there is no process to start."""
