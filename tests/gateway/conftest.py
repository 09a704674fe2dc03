from __future__ import annotations

import importlib
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import RunningServer

HERE = Path(__file__).parent


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
        """Status, JSON and headers of an answer."""
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
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
        """The results of several calls."""
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
        """A metric."""
        text = self.ask("GET", "/metrics")[1]
        return float(next(line for line in text.splitlines() if line.startswith(name)).split()[1])

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        if not path.exists():
            pytest.skip("needs /proc to find the workers")
        return [int(pid) for pid in path.read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs (and is not merely unburied)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _need_server() -> None:
    for package in ("fastapi", "prometheus_client"):
        pytest.importorskip(package, reason="the extra server is not installed")


@pytest.fixture(scope="session")
def bench() -> Any:
    """The benchmark, whose functions are tests when they are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE.parents[1] / "benchmarks")
        return importlib.import_module("gateway")


@pytest.fixture(scope="session")
def gateway() -> Iterator[RunningGateway]:
    """One gateway for tests that leave it whole."""
    _need_server()
    running = RunningGateway()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def lone() -> Iterator[RunningGateway]:
    """A gateway whose sessions all share one worker, for tests that kill it."""
    _need_server()
    running = RunningGateway("--workers", "1", "--step-seconds", "8")
    yield running
    running.kill()


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningGateway]]:
    """Starts gateways that are gone after the test."""
    _need_server()
    running: list[RunningGateway] = []

    def start(*arguments: str, **settings: Any) -> RunningGateway:
        running.append(RunningGateway(*arguments, **settings))
        return running[-1]

    yield start
    for one in running:
        one.kill()
