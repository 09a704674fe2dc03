"""What one client could do to all the others: each request that stalled a server, and who may not ask."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import RunningServer

pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[server]'")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

import uvicorn
from pydantic import ValidationError
from starlette.testclient import TestClient

from env_servers import application
from paw_train.viewer.app import create_app as create_viewer

from .test_contracts import ADDRESS, JSON, SERVERS, TOKEN, made

KEY = {"X-PaW-Client": "a key of the tests"}
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
ALL = (*SERVERS, "viewer")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The application of a server, with a token."""
    if request.param != "viewer":
        return made(request.param)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    return create_viewer(tmp_path / "run", token=TOKEN)


every_server = pytest.mark.parametrize("server", ALL, indirect=True)


# --- what is wrong costs no more than what is right --------------------------------------------------

MANY = 8_000
MEMBERS = {str(number): [] for number in range(MANY)}
OPEN = {"op": "open", "env_id": "x", "kwargs": MEMBERS}
RESTORE = {"op": "restore", "session": "s", "reset": {}, "steps": [1] * MANY}
WRONG: dict[str, tuple[str, str, Any]] = {
    "calls": ("gateway", "/v1/calls", {"calls": [{}] * MANY}),
    "calls without settings": ("webshop", "/v1/calls", {"calls": [{"op": "open"}] * MANY}),
    "steps": ("gateway", "/v1/calls", {"calls": [RESTORE]}),
    "unknown members": ("gateway", "/v1/calls", {"calls": [], **MEMBERS}),
    "settings of a call": ("gateway", "/v1/calls", {"calls": [OPEN]}),
    "queries": ("retriever", "/retrieve", {"queries": [1] * MANY}),
    "typed queries": ("retriever", "/v1/search", {"queries": [1] * MANY}),
    "contexts": ("retriever", "/v1/search", {"queries": [], "contexts": [{}] * MANY}),
}
"""server, path and body, of which all parts of one kind are wrong"""


@pytest.mark.parametrize("attack", WRONG)
def test_one_mistake_is_enough(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, path, body = WRONG[attack]
    counted = []

    def as_problem(error: Exception) -> Any:
        if isinstance(error, ValidationError):
            counted.append(error.error_count())
        return original(error)

    original = application.as_problem
    monkeypatch.setattr(application, "as_problem", as_problem)
    web = TestClient(made(server, None), ADDRESS, headers=KEY)
    answer = web.post(path, json=body)
    assert answer.status_code == 422
    assert sum(counted) < 10, f"{sum(counted)} mistakes were looked for"


def test_a_million_objects_are_refused_before_they_are_parsed() -> None:
    web = TestClient(made("gateway", None), ADDRESS, headers=KEY)
    answer = web.post("/v1/calls", json={"calls": [{}] * 10_000})
    assert answer.status_code == 422 and "8,192 objects" in answer.json()["detail"]


def test_braces_and_colons_in_texts_are_no_members() -> None:
    text = '{":' * 500 + "\\"
    with TestClient(made("retriever", None), ADDRESS) as web:
        answer = web.post("/v1/search", json={"queries": [text, text[:-2]], "top_k": 1})
    assert answer.status_code == 200


# --- what is refused is not read ---------------------------------------------------------------------


def _asked(
    app: Any, path: str, headers: list[tuple[str, str]], method: str = "POST"
) -> tuple[int, int]:
    """The status of a request with a body, and how often a piece of the body was asked for."""
    read, sent = [0], []

    async def receive() -> Any:
        read[0] += 1
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "http_version": "1.1",
        "raw_path": path.encode(), "root_path": "",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert (b"connection", b"close") in sent[0]["headers"]
    return sent[0]["status"], read[0]


@every_server
@pytest.mark.parametrize(
    ("change", "status"),
    [({"authorization": None}, 401), ({"authorization": "Bearer wrong"}, 401),
     ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401), ({"authorization": f"Bearer {TOKEN[:1]}"}, 401),
     ({"authorization": f"Bearer {TOKEN}x"}, 401), ({"authorization": "Bearer "}, 401),
     ({"cookie": "paw-80=", "authorization": None}, 401),
     ({"host": None}, 421), ({"host": "evil.example"}, 421), ({"host": "127.0.0.1.evil.example"}, 421),
     ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
     ({"origin": "http://127.0.0.1:9"}, 403), ({"content-type": "text/plain"}, 415),
     ({"content-type": None}, 415), ({"content-type": "application/x-www-form-urlencoded"}, 415),
     ({"content-length": str(1 << 40)}, 413)],
)  # fmt: skip
def test_a_refused_request_is_not_read(
    server: Any, change: dict[str, str | None], status: int
) -> None:
    right = {"host": "127.0.0.1", "content-length": "2", "content-type": "application/json"}
    given = {**right, "authorization": f"Bearer {TOKEN}", **change}
    headers = [(name, value) for name, value in given.items() if value is not None]
    assert _asked(server, "/v1/calls", headers) == (status, 0)


@every_server
def test_two_headers_host_are_one_too_many(server: Any) -> None:
    headers = [
        ("host", "127.0.0.1"),
        ("host", "evil.example"),
        ("authorization", f"Bearer {TOKEN}"),
    ]
    for given in (headers, [headers[1], headers[0], headers[2]]):
        assert _asked(server, "/metrics", given, "GET") == (421, 0)


@every_server
def test_a_page_of_its_own_may_ask(server: Any) -> None:
    web = TestClient(server, ADDRESS, headers={**SHOWN, "Origin": ADDRESS})
    assert web.get("/health").status_code == 200


# --- the link with the token -------------------------------------------------------------------------


@every_server
def test_a_link_opens_the_page_and_leaves_a_cookie(server: Any) -> None:
    web = TestClient(server, ADDRESS, follow_redirects=False)
    assert web.get(f"/?token={TOKEN[:-1]}").status_code == 401
    assert web.get(f"/metrics?token={TOKEN}").status_code == 401
    opened = web.get(f"/?token={TOKEN}")
    assert opened.status_code == 303 and opened.headers["location"] == "/"
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and TOKEN not in cookie
    assert web.get("/no/such/place").status_code == 404  # not 401: the cookie lets it in
    web.cookies.clear()
    name, _, value = cookie.partition(";")[0].partition("=")
    for wrong in (value[:-1], value[:1], "", value + "x", TOKEN):
        assert web.get("/no/such/place", headers={"Cookie": f"{name}={wrong}"}).status_code == 401


@every_server
def test_there_is_no_websocket(server: Any) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "websocket", "path": "/v1/calls", "headers": headers, "server": None}
    asyncio.run(server(scope, None, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


# --- connections -------------------------------------------------------------------------------------


@contextmanager
def serving(app: Any, limits: dict[str, Any]) -> Iterator[int]:
    """A server in this process, as ``paw serve`` starts it, with other limits of connections; its port."""
    from env_servers import connections, service

    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(connections, name, value)
        started: list[uvicorn.Server] = []
        run = uvicorn.Server.run

        def noting(server: uvicorn.Server, sockets: Any = None) -> None:
            started.append(server)
            run(server, sockets)

        patch.setattr(uvicorn.Server, "run", noting)
        settings = service.ServiceSettings(port=0, token=TOKEN)
        sockets = service.bound_sockets(settings.host, 0)
        thread = threading.Thread(
            target=service.run, args=(app, settings), kwargs={"sockets": sockets}, daemon=True
        )
        thread.start()
        while not (started and started[0].started):
            time.sleep(0.01)
        try:
            yield int(sockets[0].getsockname()[1])
        finally:
            started[0].should_exit = True
            thread.join()


def _connected(port: int, *, text: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(text)
    return connection


def _rest(connection: socket.socket) -> bytes:
    """All that the server still says; ends when it closes the connection."""
    said = b""
    try:
        while part := connection.recv(1 << 16):
            said += part
    except ConnectionResetError:  # closed while something of ours was on its way
        pass
    return said


def _health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


HEAD = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def test_a_head_without_end_is_cut_off(serve: Callable[..., RunningServer]) -> None:
    server = serve("webshop", "--num-products", "20")
    for start, piece in ((HEAD, b"X-Padding: " + b"x" * 989 + b"\r\n"), (b"GET /", b"x" * 1000)):
        with (
            closing(_connected(server.port, text=start)) as connection,
            pytest.raises((BrokenPipeError, ConnectionResetError)),
        ):
            for _ in range(20_000):  # twenty million bytes
                connection.sendall(piece)
    assert _health(server.port) == 200


def test_an_address_has_so_many_connections(serve: Callable[..., RunningServer]) -> None:
    server = serve("webshop", "--num-products", "20")
    half = [_connected(server.port, text=HEAD) for _ in range(600)]
    assert _health(server.port) == 200
    assert b"503" in _rest(half[0])  # the oldest had to go, and the youngest wait on
    half[-1].sendall(b"Connection: close\r\n\r\n")
    assert b"HTTP/1.1 4" in _rest(half[-1])
    for connection in half:
        connection.close()


def test_who_is_being_answered_keeps_the_connection() -> None:
    with serving(made("retriever"), {"PER_ADDRESS": 4}) as port:
        mine = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        head = (
            HEAD + f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n".encode()
        )
        halves = [_connected(port, text=head + b"Content-Length: 99\r\n\r\n{") for _ in range(9)]
        mine.request("POST", "/v1/search", json.dumps({"queries": ["a"]}), {**JSON, **SHOWN})
        assert mine.getresponse().status == 200
        assert all(_rest(half) for half in halves[:5])  # bodies that are not there count as waiting
        for connection in (mine, *halves):  # or the server waits for them when it stops
            connection.close()


@pytest.mark.parametrize(
    "text",
    [b"", HEAD, HEAD + f"Authorization: Bearer {TOKEN}\r\n".encode()
     + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"],
    ids=["nothing", "head", "body"],
)  # fmt: skip
def test_what_does_not_arrive_is_not_waited_for(text: bytes) -> None:
    with serving(made("retriever"), {"HEAD_CHECKS": 0, "BODY_CHECKS": 1}) as port:
        with closing(_connected(port, text=text)) as connection:
            assert b"408" in _rest(connection)
        # one that a busy machine holds up between its connection and its request is cut off, too
        assert 200 in (_health(port) for _ in range(20))
