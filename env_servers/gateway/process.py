"""The gateway's side of a worker: sends calls, matches answers, notices that it died or hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from env_servers.gateway.frames import READY, FrameReader, frame
from env_servers.gateway.progress import Progress, new_descriptor

_READY_SECONDS = 180.0
"""for Python to start and to import what the environments need"""

log = logging.getLogger("env_servers")


class EnvironmentDiedError(Exception):
    """The call killed its worker, or had to be stopped; the message states what happened."""


class WorkerGoneError(Exception):
    """The worker died of another's call before it answered this one, which may be asked again."""


@dataclass
class _Pending:
    future: asyncio.Future[tuple[int, bytes]]
    seconds: float
    """the longest that it may be executed"""


class Worker(asyncio.Protocol):
    """A worker process. Make it with ``Worker.start``.

    Args:
        on_gone: called once when the process is gone.
    """

    def __init__(self, on_gone: Callable[[Worker], None]) -> None:
        self._on_gone = on_gone
        self._reader = FrameReader()
        self._pending: dict[int, _Pending] = {}
        self._number = READY
        self._outgoing: list[bytes] = []
        self._kill_reason = ""
        self._started = time.monotonic()
        self._closing = False
        self.sessions = 0
        """environments placed here"""
        self.ready = False
        self.gone = False

    @classmethod
    async def start(
        cls, on_gone: Callable[[Worker], None], modules: Sequence[str] = (), memory_mb: int = 0
    ) -> Worker:
        """Starts a process; calls may be sent at once, and wait until it is ready."""
        worker = cls(on_gone)
        ours, theirs = socket.socketpair()
        shared = new_descriptor()
        settings = {"modules": list(modules), "memory_mb": memory_mb, "parent": os.getpid()}
        arguments = [str(theirs.fileno()), str(shared), json.dumps(settings)]
        with theirs:
            worker.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "env_servers.gateway.worker", *arguments],
                pass_fds=(theirs.fileno(), shared),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        worker._progress = Progress(shared)
        os.close(shared)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: worker, sock=ours)
        return worker

    process: subprocess.Popen[bytes]
    _progress: Progress
    _transport: asyncio.Transport

    @property
    def pending(self) -> int:
        """Calls that were sent and not answered."""
        return len(self._pending)

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[tuple[int, bytes]]:
        """Sends a call. The future gives its status and answer.

        It raises ``EnvironmentDiedError`` when this call killed the worker or took longer than
        ``seconds``, ``WorkerGoneError`` when another one did.
        """
        future = asyncio.get_running_loop().create_future()
        if self.gone:
            future.set_exception(WorkerGoneError())
            return future
        self._number += 1
        self._pending[self._number] = _Pending(future, seconds)
        if not self._outgoing:  # those of one request leave together
            asyncio.get_running_loop().call_soon(self._send)
        self._outgoing.append(frame(self._number, 0, json.dumps(body).encode()))
        return future

    def _send(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if not self.gone:
            self._transport.write(data)

    def check(self) -> None:
        """Kills the process when it hangs. To be called now and then."""
        if self.gone:
            return
        if not self.ready:
            if time.monotonic() - self._started > _READY_SECONDS:
                self.kill("it did not start")
            return
        number, seconds = self._progress.now()
        pending = self._pending.get(number)
        if pending is not None and seconds > pending.seconds:
            self.kill(f"it took longer than {pending.seconds:g} s")

    def kill(self, reason: str) -> None:
        """Ends the process at once."""
        self._kill_reason = reason
        self.process.kill()

    def close(self) -> None:
        """Ends the process; what it was doing is lost."""
        self._closing = True
        if not self.gone:
            self._transport.close()
            self.process.kill()

    # --- asyncio.Protocol ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the connection."""
        # other loops (uvloop) have transports that are no subclass of it
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hands answers to those who wait for them."""
        for number, status, body in self._reader.feed(data):
            if number == READY:
                self.ready = True
                continue
            pending = self._pending.pop(number, None)
            if pending is not None and not pending.future.done():
                pending.future.set_result((status, body))

    def connection_lost(self, error: Exception | None) -> None:
        """Tells the guilty call and the innocent ones, and reaps the process."""
        self.gone = True
        self.process.kill()
        code = self.process.wait()
        guilty, _ = self._progress.now()
        self._progress.close()
        reason = self._kill_reason or _how(code)
        if not self._closing:
            event = {"event": "worker died", "pid": self.process.pid, "reason": reason}
            log.warning(json.dumps(event))
        waiting, self._pending = self._pending, {}
        for number, pending in waiting.items():
            if not pending.future.done():
                blamed = number == guilty
                pending.future.set_exception(
                    EnvironmentDiedError(reason) if blamed else WorkerGoneError()
                )
        self._on_gone(self)


def _how(code: int) -> str:
    return f"its process was killed by signal {-code}" if code < 0 else "its process ended"
