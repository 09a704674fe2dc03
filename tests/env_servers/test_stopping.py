"""A service that is stopped while it answers: it finishes, and what takes too long is told so."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import free_port

pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

Stopped = Callable[..., tuple[http.client.HTTPResponse, bytes]]


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    """The servers of a test."""
    servers: list[subprocess.Popen[str]] = []
    yield servers
    for server in servers:
        server.kill()
        server.communicate()


@pytest.fixture
def stopped(running: list[subprocess.Popen[str]]) -> Stopped:
    """Asks a slow retriever, which is stopped meanwhile; its answer."""

    def ask(*arguments: str) -> tuple[http.client.HTTPResponse, bytes]:
        port = free_port()
        command = [sys.executable, str(Path(__file__).with_name("slow_retriever.py")), str(port)]
        server = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        running.append(server)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        _connect(connection)
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/search", json.dumps({"queries": ["a"]}), kind)
        assert server.stdout is not None and server.stdout.readline() == "searching\n"
        server.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        return answer, answer.read()

    return ask


def _connect(connection: http.client.HTTPConnection) -> None:
    for _ in range(1200):
        with contextlib.suppress(OSError):
            connection.connect()
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not start within a minute")


def test_what_is_being_answered_is_finished(stopped: Stopped) -> None:
    answer, content = stopped("6.5")
    assert answer.status == 200, content
    assert json.loads(content)["results"][0]["hits"][0]["id"] == "p"


def test_what_takes_too_long_is_told_so(stopped: Stopped) -> None:
    answer, content = stopped("600", "0.5")
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(content)
    assert "stopped" in problem["detail"] and problem["instance"] == "/v1/search"


def test_a_search_that_hangs_does_not_keep_the_server_up(
    stopped: Stopped, running: list[subprocess.Popen[str]]
) -> None:
    answer, _ = stopped("600", "0.5")
    assert answer.status == 503
    assert running[0].wait(timeout=120) == -signal.SIGTERM
