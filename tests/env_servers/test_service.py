"""A service's settings, its address, its log, and what it does at a signal."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from servers import free_port, wait_until

from env_servers import service
from env_servers.service import ServiceSettings, address_of, bound_sockets
from paw_gym.internals.files import own_token


def test_only_this_machine_without_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert not ServiceSettings(host, 65535).is_new
    for host in ("0.0.0.0", "192.168.1.5", "example.org"):
        with pytest.raises(ValueError, match="a token is needed"):
            ServiceSettings(host)
        ServiceSettings(host, 0, token="x", certificate=__file__)


def test_an_address_is_taken_once_and_named_with_its_port() -> None:
    sockets = bound_sockets("localhost", 0)
    [port] = {one.getsockname()[1] for one in sockets}
    for one in sockets:
        one.listen()
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    with pytest.raises(OSError, match=rf"Port {port} of localhost cannot be .*Give another --port"):
        bound_sockets("localhost", port)
    with pytest.raises(OSError, match="--host no.such: this machine has no such address"):
        bound_sockets("no.such", 0)
    assert address_of(ServiceSettings("localhost"), sockets) == f"http://localhost:{port}"
    secret = ServiceSettings("::1", certificate=__file__)
    assert address_of(secret, sockets) == f"https://[::1]:{port}"
    if socket.has_ipv6:  # whose ports are others
        [six] = bound_sockets("::", 0)
        sockets += [six, *bound_sockets("0.0.0.0", six.getsockname()[1])]
    for one in sockets:
        one.close()


def test_a_line_of_the_log_is_an_object() -> None:
    def line(message: str, **more: Any) -> Any:
        text = service.JsonLines().format(logging.makeLogRecord({"msg": message, **more}))
        assert "\\u" not in text
        return json.loads(text)

    found = line('{"status": 200}', levelname="INFO", created=1.5, msecs=7)
    assert found == {"time": "1970-01-01T00:00:01.007Z", "level": "info", "status": 200}
    told = line("é", exc_info=(KeyError, KeyError("x"), None))
    assert told["message"] == "é" and "KeyError" in told["traceback"]


def test_a_new_token_is_kept_while_the_service_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    own, theirs = logging.getLogger("env_servers"), logging.getLogger("uvicorn")
    for logger in (own, theirs):
        for held in ("handlers", "propagate", "level"):
            monkeypatch.setattr(logger, held, getattr(logger, held))
    seen: list[Any] = []

    def run(server: Any, sockets: Any) -> None:
        found = own_token(f"http://127.0.0.1:{sockets[0].getsockname()[1]}")
        seen.append((found, own.level, server.config.timeout_graceful_shutdown))
        kept_out = server.config.proxy_headers, server.config.access_log, theirs.propagate
        assert kept_out == (False, False, False)
        assert theirs.level == logging.INFO
        assert isinstance(own.handlers[0].formatter, service.JsonLines)

    monkeypatch.setattr(service._Server, "run", run)
    app: Any = None
    service.run(app, ServiceSettings(port=0, token="t", is_new=True))
    service.run(app, ServiceSettings(port=0, token="t"), verbose=True)
    last = service.LAST_SECONDS
    assert seen == [("t", logging.WARNING, last), (None, logging.INFO, last)]
    assert not list(tmp_path.glob("servers/*"))


SLOW = """
import sys, time
from env_servers import service
from env_servers.retrieval import create_app
from paw_gym.retrieval import Hit

class Slow:
    fingerprint, wants_contexts = "slow", False
    def search(self, queries, top_k=3, contexts=None):
        print("searching", flush=True)
        time.sleep(seconds)
        return [[Hit("p", query, 1.0)] for query in queries]

port, seconds, service.LAST_SECONDS = map(float, sys.argv[1:])
service.run(create_app(Slow()), service.ServiceSettings(port=int(port)))
"""


@contextlib.contextmanager
def stopped(
    seconds: float, last: float = 30.0
) -> Iterator[tuple[http.client.HTTPResponse, subprocess.Popen[str]]]:
    port = free_port()
    command = [sys.executable, "-c", SLOW, *map(str, (port, seconds, last))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        wait_until(lambda: _connects(connection), "the server starts")
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/search", json.dumps({"queries": ["a"]}), kind)
        assert server.stdout is not None and server.stdout.readline() == "searching\n"
        server.send_signal(signal.SIGTERM)
        yield connection.getresponse(), server
    finally:
        server.kill()
        server.communicate()


def _connects(connection: http.client.HTTPConnection) -> bool:
    with contextlib.suppress(OSError):
        connection.connect()
    return connection.sock is not None


def test_what_is_being_answered_is_finished() -> None:
    with stopped(6.5) as (answer, _):
        assert answer.status == 200
        assert json.loads(answer.read())["results"][0]["hits"][0]["id"] == "p"


def test_what_takes_too_long_is_told_so_and_does_not_keep_the_server_up() -> None:
    with stopped(600, 0.5) as (answer, server):
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.headers["content-type"] == "application/problem+json"
        problem = json.loads(answer.read())
        assert "stopped" in problem["detail"] and problem["instance"] == "/v1/search"
        assert server.wait(timeout=120) == -signal.SIGTERM
