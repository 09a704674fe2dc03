"""A process that holds environments and executes calls, one at a time, in the order they come.

    python -m env_servers.gateway.worker SOCKET PROGRESS SETTINGS

It trusts the gateway, which has checked every call, and nobody else speaks to it: its socket is
inherited. Whatever an environment does (raise, exit, hang, die), it does it here.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

from env_servers.gateway.frames import OK, READY, FrameReader, frame
from env_servers.gateway.hosted import Host
from env_servers.gateway.progress import Progress
from paw_gym.internals.constructors import import_named

_FLUSH = 0.005
"""seconds that an answer may wait for others to be sent with it"""
_PR_SET_PDEATHSIG = 1


def serve(connection: socket.socket, progress: Progress, host: Host) -> None:
    """Answers calls until the other end is closed."""
    reader = FrameReader()
    connection.sendall(frame(READY, OK, b""))
    while data := connection.recv(1 << 18):
        answers: list[bytes] = []
        flushed = time.monotonic()
        for number, _, body in reader.feed(data):
            progress.begin(number)
            answers.append(frame(number, *host.answer(json.loads(body))))
            if time.monotonic() - flushed > _FLUSH:
                connection.sendall(b"".join(answers))
                answers, flushed = [], time.monotonic()
        progress.begin(0)
        if answers:
            connection.sendall(b"".join(answers))


def _prepare(settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a worker that hangs would not see that its gateway is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            sys.exit("The gateway is gone already.")
    os.dup2(2, 1)  # what an environment prints is no answer
    if settings["memory_mb"]:
        most = settings["memory_mb"] << 20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in settings["modules"]:
        import_named(name)


def main() -> None:
    """The process."""
    logging.basicConfig(format="worker: %(message)s", level=logging.WARNING)
    descriptor, shared, settings = sys.argv[1:]
    connection = socket.socket(fileno=int(descriptor))
    progress = Progress(int(shared))
    _prepare(json.loads(settings))
    serve(connection, progress, Host())


if __name__ == "__main__":
    main()
