from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from servers import RunningServer, starting


async def exchange(
    app: Any, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes = b"{}"
) -> tuple[list[Any], int]:
    """What an application sends for a request, and how often it asked for a piece of its body."""
    sent, asked = [], 0
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "root_path": "",
        "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> Any:
        nonlocal asked
        asked += 1
        whole = {"type": "http.request", "body": body, "more_body": False}
        return whole if asked == 1 else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent, asked


class Client:
    loop = asyncio.new_event_loop()  # one for all: Python warns of each that nobody closed

    def __init__(self, app: Any) -> None:
        self.app = app
        self.events = asyncio.Queue[Any]()

    def __enter__(self) -> Client:
        begun = self.loop.create_future()

        async def send(message: Any) -> None:
            begun.done() or begun.set_result(message)

        self.events.put_nowait({"type": "lifespan.startup"})
        self.life = self.loop.create_task(self.app({"type": "lifespan"}, self.events.get, send))
        self.loop.run_until_complete(begun)
        return self

    def __exit__(self, *_: object) -> None:
        self.events.put_nowait({"type": "lifespan.shutdown"})
        self.loop.run_until_complete(self.life)

    def __call__(
        self, method: str, path: str, body: bytes | Any = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = (
            "application/x-www-form-urlencoded" if path.startswith("/shop") else "application/json"
        )
        given = {"host": "127.0.0.1", "content-type": kind, "content-length": str(len(raw))}
        given |= {"x-paw-client": "a key of the tests", **(headers or {})}
        asking = exchange(self.app, method, path, list(given.items()), raw)
        sent, _ = self.loop.run_until_complete(asking)
        answered = {k.decode().lower(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], answered, b"".join(m.get("body", b"") for m in sent[1:])

    def json(self, method: str, path: str, body: Any = b"") -> Any:
        status, _, content = self(method, path, body)
        assert status < 300, (status, content)
        return json.loads(content)

    def one(self, op: str, status: int = 200, **call: Any) -> Any:
        [result] = self.json("POST", "/v1/calls", {"calls": [{"op": op, **call}]})["results"]
        assert result["status"] == status, result
        return result["answer"]

    def enter(self) -> str:
        status, headers, _ = self("POST", "/shop", b"split=test")
        assert status == 303
        return headers["location"]


_JUNK = (
    "", "..", "%00", "\x00", "\u202e", "' OR 1=1", "{{7*7}}", "\ud800", "💥" * 40, "-1", "NaN", "null",
    "a/../../etc", "<script>", "[" * 90, "x" * 5000, "\r\nX: y",
)  # fmt: skip


def strange_word(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_JUNK)
    return "".join(rng.choices(string.printable, k=rng.randint(1, 30)))


def strange_json(rng: random.Random, names: Sequence[str], depth: int = 0) -> Any:
    """JSON of any kind; ``names``: of members, which mean something to who reads it."""
    match rng.randrange(5 if depth < 3 else 3):
        case 0:
            return rng.choice([None, True, -1, 0, 3, 2**70, 1e308, float("inf")])
        case 1 | 2:
            return strange_word(rng)
        case 3:
            return [strange_json(rng, names, depth + 1) for _ in range(rng.randint(0, 3))]
    return {
        rng.choice(names): strange_json(rng, names, depth + 1) for _ in range(rng.randint(0, 4))
    }


@pytest.fixture
def serve() -> Iterator[Any]:
    with starting(RunningServer) as start:
        yield start


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with closing(Browser(tmp_path / "profile")) as opened:
        yield opened
