"""Servers of tests: ``paw serve`` in a process of its own, or an application in a thread."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """A port below those that systems give away, so that nobody gets it meanwhile."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = 10_000 + secrets.randbelow(20_000)
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(check: Callable[[], Any], what: str = "it", seconds: float = 120.0) -> Any:
    """What a check gives once it is true; the limit only ends a test that has failed."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return found


def status_of(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class RunningServer:
    """``paw serve`` in a process of its own."""

    scheme = "http"

    def __init__(self, *arguments: str, makes_token: bool = False, **variables: str) -> None:
        self.port = free_port()
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "paw_train.cli", "serve", *arguments]
        self._command += ["--port", str(self.port)]
        if not makes_token and not {"--token", "--tokens-file"} & set(arguments):
            self._command.append("--no-token")
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        wait_until(self._started, "the server's first answer")

    def _started(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended: {self.process.communicate()[1]}")
        with contextlib.suppress(OSError):
            return self.answers()
        return False

    def answers(self) -> bool:
        return status_of(f"{self.url}/health") == 200

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit status, and what it wrote to stderr."""
        self.process.send_signal(how)
        said = self.process.communicate(timeout=120)[1]
        return self.process.returncode, said

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def starting(kind: type[RunningServer]) -> Iterator[Callable[..., Any]]:
    """Starts servers that are gone at the end."""
    running: list[RunningServer] = []

    def start(*arguments: str, **settings: Any) -> RunningServer:
        running.append(kind(*arguments, **settings))
        return running[-1]

    yield start
    for server in running:
        server.kill()


Reply = tuple[int, Any]


@contextmanager
def serve(answer: Callable[..., Reply], headers: bool = False) -> Iterator[str]:
    """An address whose answers ``answer(method, path, payload)`` gives: a status, and JSON or bytes.

    A status of 0 closes the connection without a word; one below 0 says nothing for so many seconds. With
    ``headers``, ``answer`` is given those of the request too.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            more = (self.headers,) if headers else ()
            payload = json.loads(text) if text else None
            status, content = answer(self.command, self.path, payload, *more)
            if status <= 0:
                time.sleep(-status)
                self.close_connection = True
                return
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def in_thread(app: Any) -> Iterator[str]:
    """The address of an application that is served by a thread of this process."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
