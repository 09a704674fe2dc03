from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from servers import RunningServer, starting

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
importlib.import_module("troubles")  # registers its environments here, too


class RunningGateway(RunningServer):
    """``paw serve gateway`` with the environments of ``troubles``."""

    def __init__(self, *arguments: str, scheme: str = "http", **variables: str) -> None:
        self.scheme = scheme
        path = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
        super().__init__("gateway", "--import", "troubles", *arguments, **path, **variables)

    def answers(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port)).close()
        return True

    def ask(
        self, method: str, path: str, body: Any = None, key: str = "k" * 16, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        if key:
            given["X-PaW-Client"] = key
        request = urllib.request.Request(self.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                content, status, said = answer.read(), answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            content, status, said = error.read(), error.code, dict(error.headers)
        try:
            parsed = json.loads(content)
        except ValueError:
            parsed = content.decode()
        return status, parsed, {name.lower(): value for name, value in said.items()}

    def calls(
        self, *calls: dict[str, Any], key: str = "k" * 16, **headers: str
    ) -> list[dict[str, Any]]:
        status, content, _ = self.ask("POST", "/v1/calls", {"calls": calls}, key, **headers)
        assert status == 200, content
        return content["results"]  # type: ignore[no-any-return]

    def open(self, env_id: str, key: str = "k" * 16, **kwargs: Any) -> str:
        """A new session in which an episode runs."""
        [opened] = self.calls({"op": "open", "env_id": env_id, "kwargs": kwargs}, key=key)
        assert opened["status"] == 200, opened
        session: str = opened["answer"]["session"]
        [begun] = self.calls({"op": "reset", "session": session, "seed": 1}, key=key)
        assert begun["status"] == 200, begun
        return session

    def step(self, session: str, action: str, key: str = "k" * 16, **more: Any) -> dict[str, Any]:
        """What came of an action."""
        [result] = self.calls({"op": "step", "session": session, "action": action, **more}, key=key)
        return result

    def number(self, name: str) -> float:
        return float(self.ask("GET", "/health")[1][name])

    def workers(self) -> list[int]:
        return children(self.process.pid)


def children(process: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has just ended
            found += map(int, listed.read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs (and is not merely unburied)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="session")
def bench() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE.parents[1] / "benchmarks")
        return importlib.import_module("gateway")


@pytest.fixture(scope="session")
def gateway() -> Iterator[RunningGateway]:
    """One gateway for tests that leave it whole."""
    with starting(RunningGateway) as start:
        yield start()


@pytest.fixture(scope="session")
def lone() -> Iterator[RunningGateway]:
    """A gateway whose sessions all share one worker, for tests that kill it."""
    with starting(RunningGateway) as start:
        yield start("--workers", "1", "--step-seconds", "8")


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningGateway]]:
    with starting(RunningGateway) as start:
        yield start
