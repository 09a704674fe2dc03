from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RunningServer:
    """`paw serve` in a process of its own."""

    def __init__(
        self, *arguments: str, port: int | None = None, makes_token: bool = False, **variables: str
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "paw_train.cli", "serve", *arguments]
        self._command += ["--port", str(self.port)]
        self._environment = {**os.environ, **variables}
        if "--token" not in arguments and not makes_token:
            self._command.append("--no-token")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        for _ in range(1200):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.process.communicate()[1]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health"):
                return
            time.sleep(0.1)
        raise RuntimeError("the server did not answer within two minutes")

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit status, and what it wrote to stderr."""
        self.process.send_signal(how)
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts servers that are gone after the test."""
    running: list[RunningServer] = []

    def start(*arguments: str, **settings: Any) -> RunningServer:
        running.append(RunningServer(*arguments, **settings))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()
