"""What every server promises in its OpenAPI document, what stalled one, and who may not ask."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from click.testing import CliRunner
from pydantic import ValidationError
from servers import RunningServer, in_thread
from starlette.testclient import TestClient

import env_servers.gateway
import env_servers.retrieval
import env_servers.webshop
from env_servers import application
from env_servers.gate import Gate
from paw_gym.retrieval import make_retriever
from paw_train.viewer.app import create_app as create_viewer

from .conftest import Client, exchange, strange_json, strange_word

TOKEN = "a-token-of-the-tests"
ADDRESS = "http://127.0.0.1"
JSON = {"Content-Type": "application/json"}
SERVERS = ("gateway", "retriever", "webshop")
PASSAGES = [(f"p{i}", f'"Title {i}"\nword{i} text') for i in range(50)]


def made(server: str, token: str | None = TOKEN) -> Gate:
    if server == "gateway":
        offer = env_servers.gateway.Offer(frozenset({"paw_gym/SearchQA-v0"}))
        limits = env_servers.gateway.Limits(workers=1)
        tokens = [] if token is None else [token]
        return env_servers.gateway.create_app(offer, limits, tokens=tokens)
    if server == "retriever":
        found = make_retriever("bm25", corpus=PASSAGES)
        return env_servers.retrieval.create_app(found, token=token)
    return env_servers.webshop.create_app(token=token)


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


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"calls": [' + b"{}," * 10_000, "8,192 objects"),
        (b'{"calls": [], ' + b'"a": 0,' * 1_001, "64 members"),
        (b'"' + b'\\"' * 500_000 + b":" * 1_001, "Invalid JSON"),
    ],
)
def test_a_long_body_is_refused_before_it_is_parsed(body: bytes, words: str) -> None:
    """None of them has an end, which would be found too late."""
    web = TestClient(made("gateway", None), ADDRESS, headers=KEY)
    answer = web.post("/v1/calls", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and words in answer.json()["detail"]


def test_braces_and_colons_in_texts_are_no_members() -> None:
    text = '{":' * 500 + "\\"
    with TestClient(made("retriever", None), ADDRESS) as web:
        answer = web.post("/v1/search", json={"queries": [text, text[:-2]], "top_k": 1})
    assert answer.status_code == 200


def _asked(
    app: Any, path: str, headers: list[tuple[str, str]], method: str = "POST"
) -> tuple[int, int]:
    sent, read = asyncio.run(exchange(app, method, path, headers))
    assert (b"connection", b"close") in sent[0]["headers"]
    return sent[0]["status"], read


@every_server
@pytest.mark.parametrize(
    ("change", "status"),
    [({"authorization": None}, 401), ({"authorization": "Bearer wrong"}, 401),
     ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401), ({"authorization": f"Bearer {TOKEN[:1]}"}, 401),
     ({"authorization": f"Bearer {TOKEN}x"}, 401), ({"authorization": "Bearer "}, 401),
     ({"authorization": "Basic bm9wZQ=="}, 401), ({"authorization": "Basic %%%"}, 401),
     ({"authorization": TOKEN}, 401), ({"authorization": f"Digest {TOKEN}"}, 401),
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
    hosts = [("host", "127.0.0.1"), ("host", "evil.example")]
    for given in (hosts, hosts[::-1]):
        headers = [*given, ("authorization", f"Bearer {TOKEN}")]
        assert _asked(server, "/no/such/place", headers, "GET") == (421, 0)


@every_server
def test_who_shows_the_token_may_ask_and_so_may_a_page_of_its_own(server: Any) -> None:
    web = TestClient(server, ADDRESS, headers={"Origin": ADDRESS})
    asked = web.get("/no/such/place")
    assert asked.status_code == 401 and asked.headers["www-authenticate"].startswith("Basic")
    assert web.get("/health").status_code == 200
    assert web.get("/no/such/place", headers=SHOWN).status_code == 404
    assert web.get("/no/such/place", auth=("anybody", TOKEN)).status_code == 404


@every_server
def test_a_link_opens_the_page_and_leaves_a_cookie(server: Any) -> None:
    web = TestClient(server, ADDRESS, follow_redirects=False)
    assert web.get(f"/?token={TOKEN[:-1]}").status_code == 401
    assert web.get(f"/no/such/place?token={TOKEN}").status_code == 401
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


@contextmanager
def serving(app: Any, limits: dict[str, Any]) -> Iterator[int]:
    """A server in this process, as ``paw serve`` starts it, with other limits of connections; its port."""
    from env_servers import service

    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(service, name, value)
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


PATHS = {
    "retriever": "/retrieve /v1/search /retrieve /v1/search /v1/info /x //",
    "webshop": "/ /shop /shop/{s} /shop/{s}/results /shop/{s}/item/{a} /shop/{s}/item/{a}/features "
    "/shop/{s}/buy/{a} /shop/{s}/done /shop/{s}/leave /style.css /health /no/such/place /v1/calls /v1/calls",
}
NAMES = (
    "queries", "topk", "top_k", "return_scores", "contexts", "question", "calls", "op", "env_id", "kwargs",
    "seed", "options", "action", "session", "at", "what", "steps", "q",
)  # fmt: skip
QUERIES = ["word4"], ["\ud800"], [""], ["a\x00b"], ["text"] * 9, ["y"] * 300, [None, {}]


@pytest.mark.parametrize("server", PATHS)
def test_three_thousand_malformed_requests_never_fail(server: str) -> None:
    rng, seen, live = random.Random(0), Counter[int](), [""]
    with Client(made(server, None)) as client:
        for number in range(3_000):
            if server == "webshop" and number % 500 == 0:  # some of them close it
                live = [client.enter().rpartition("/")[2] for _ in "12"]
            session, asin = (quote(strange_word(rng), safe="", errors="replace") for _ in "sa")
            path = rng.choice(PATHS[server].split()).replace("{s}", rng.choice([*live, session]))
            path = path.replace("{a}", asin)
            if rng.random() < 0.3:
                path += f"?q={strange_word(rng)}&{strange_word(rng)}=1"
            body = strange_json(rng, NAMES)
            if rng.random() < 0.4:
                body = {"topk": 2, strange_word(rng): body, "queries": rng.choice(QUERIES)}
            text = json.dumps(body).encode() if rng.random() < 0.99 else b"[" * 100_000
            if rng.random() < 0.3:
                cut, more = rng.randrange(len(text) + 1), rng.randbytes(rng.randint(0, 9))
                text = text[:cut] + more + text[cut + rng.randint(0, 3) :]
            (method,) = rng.choices(["POST", "GET", "PUT", "HEAD", "BREW", ""], [9, 3, 1, 1, 1, 1])
            strange = {rng.choice(("content-type", "content-length", "cookie")): "x\x80y"}
            headers = strange if rng.random() < 0.2 else {}
            status = client(method, path.encode("utf-8", "replace").decode(), text, headers)[0]
            assert status < 500, (method, path, text[:300], headers)
            seen[status] += 1
        assert client.json("GET", "/health")["status"] == "ok"
    assert seen[200] > 100 and seen[422] > 300


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_does_what_its_document_says(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checks of Schemathesis, with a fixed seed: boundary values, random requests, and sequences."""
    cli = pytest.importorskip("schemathesis.cli", reason="pip install '.[dev]'")
    settings = Path(__file__).resolve().with_name("schemathesis.toml")
    monkeypatch.chdir(tmp_path)  # it keeps what failed, and would begin with that the next time
    with in_thread(made(server)) as url:
        ran = CliRunner().invoke(
            cli.schemathesis,
            ["--config-file", str(settings), "run", f"{url}/openapi.json", "--checks", "all",
             "--header", f"Authorization: Bearer {TOKEN}", "--seed", "1", "--max-examples", "5",
             "--generation-database", "none", "--no-color"],
        )  # fmt: skip
    assert ran.exit_code == 0, ran.output[-5000:]
    assert "Coverage" in ran.output and "Fuzzing" in ran.output


BODIES = {
    "gateway": ("/v1/calls", b'{"calls": [{"op": "no such"}]}'),
    "retriever": ("/retrieve", b'{"queries": 3}'),
    "webshop": ("/v1/calls", b'{"calls": 3}'),
}


@pytest.mark.parametrize("server", SERVERS)
def test_every_error_is_problem_details(server: str) -> None:
    path, malformed = BODIES[server]
    web = TestClient(made(server), ADDRESS, headers={**JSON, **SHOWN, **KEY})
    huge = b"x" * ((16 << 20) + 1)
    for status, answer in (
        (401, web.post(path, content=malformed, headers={"Authorization": "Bearer wrong"})),
        (404, web.get("/no/such/place")),
        (405, web.put(path)),
        (413, web.post(path, content=huge)),
        (422, web.post(path, content=malformed)),
        (422, web.post(path, content=b"{")),
        (422, web.post(path, content=b"[" * 100_000)),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        content = answer.json()
        assert content["type"] == "about:blank" and content["status"] == status
        assert content["title"] == HTTPStatus(status).phrase
        assert content["detail"].endswith(".") or status == 422
        assert content["instance"] == ("/no/such/place" if status == 404 else path)
    mistakes = web.post(path, content=malformed).json()["errors"]
    assert mistakes[0]["pointer"].split("/")[1] in ("calls", "queries")
    assert "POST" in web.put(path).headers["allow"]


def test_what_fails_inside_is_no_page_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    app = made("retriever", None)
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as web:
        monkeypatch.setattr("env_servers.retrieval.app._require_few", lambda *arguments: 1 / 0)
        answer = web.post("/retrieve", json={"queries": ["a"]})
    assert answer.status_code == 500 and answer.json()["detail"].startswith("The server failed")
    assert "ZeroDivision" not in answer.text


def test_whole_numbers_may_be_written_as_json_lets_them() -> None:
    with TestClient(made("retriever", None), ADDRESS, headers=JSON) as web:
        body = b'{"queries": ["text"], "topk": 2.0}'
        assert len(web.post("/retrieve", content=body).json()["result"][0]) == 2
        assert web.post("/retrieve", content=body.replace(b"2.0", b'"2"')).status_code == 422
        assert web.post("/retrieve", content=body.replace(b"2.0", b"2.5")).status_code == 422


def test_the_document_needs_the_token_and_says_so() -> None:
    web = TestClient(made("gateway"), ADDRESS)
    assert web.get("/openapi.json").status_code == 401
    with_token = web.get("/openapi.json", headers=SHOWN).json()
    assert with_token["paths"]["/v1/calls"]["post"]["security"] == [{"bearer": []}, {"basic": []}]
    without = json.loads(TestClient(made("gateway", None), ADDRESS).get("/openapi.json").text)
    assert without["paths"]["/v1/calls"]["post"]["security"] == [{"client": []}]
    assert "401" not in without["paths"]["/health"]["get"]["responses"]
