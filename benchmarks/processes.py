"""Services of ``paw`` in processes of their own, and the resources that a process uses (Linux)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Service:
    """A command of ``paw`` that listens on a port, from its first answer to the end of the block.

    Args:
        command: such as ``"serve", "gateway"``; a free port is added.
        variables: additional environment variables.
        is_ready: whether the answer of ``/health`` means that the service can be measured.
    """

    def __init__(
        self,
        *command: str,
        variables: Mapping[str, str] | None = None,
        is_ready: Callable[[Any], bool] = lambda health: True,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "paw_train.cli",
                *command,
                "--no-token",
                "--port",
                str(self.port),
            ],
            env={**os.environ, **(variables or {})},
            stderr=subprocess.DEVNULL,
        )
        self.pid = self.process.pid
        while self.process.poll() is None:
            try:
                if is_ready(self.health()):
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"paw {' '.join(command)} ended before it answered.")

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def health(self) -> Any:
        """The answer of ``/health``."""
        with urllib.request.urlopen(f"{self.url}/health") as answer:
            return json.load(answer)

    def stop(self) -> int:
        """Ends it by SIGTERM and returns its status."""
        self.process.terminate()
        return self.process.wait()


def memory_mb(pid: int | str = "self", field: str = "VmRSS") -> float:
    """A field of a process's status in MB of 2^20 bytes: ``VmRSS``, ``RssAnon``, ``VmHWM``."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
