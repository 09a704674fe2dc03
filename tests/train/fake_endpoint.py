"""An OpenAI-compatible server that answers by a fixed rule and can be told to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Faults:
    """Shares of requests that go wrong, each in its way."""

    error: float = 0.0
    """status 500"""
    overload: float = 0.0
    """status 429 with ``Retry-After``"""
    slow: float = 0.0
    """longer than the client waits"""
    cut: float = 0.0
    """the connection ends in the middle of the reply"""
    garbage: float = 0.0
    """status 200 and no JSON"""
    retry_after: str = "0.02"
    slow_seconds: float = 1.0
    status: int | None = None
    """every request gets this status"""
    code: str | None = None
    """the error's code"""


@dataclass
class FakeEndpoint:
    """``with FakeEndpoint() as server: server.url``; the same port after ``kill`` and ``start``."""

    faults: Faults = field(default_factory=Faults)
    served: int = 0
    """requests answered properly"""
    seen: int = 0
    """requests that came"""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorization: set[str] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    port: int = 0
    stop_reason: bool = False
    die_at: int = 0
    """the request that kills this process, unanswered; 0: none"""
    seed: int = 0
    """of the faults"""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.random = random.Random(self.seed)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                with contextlib.suppress(OSError):
                    endpoint.handle(self, body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: Any) -> None:
                """A client that hung up is what these tests are about."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def kill(self) -> None:
        """Stops listening; what is under way gets no answer."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def __enter__(self) -> FakeEndpoint:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.kill()

    def handle(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self.lock:
            self.seen += 1
            if self.seen == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.bodies.append(body)
            self.authorization.add(handler.headers.get("Authorization") or "")
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            dice = self.random.random()
        try:
            self._reply(handler, body, dice)
        finally:
            with self.lock:
                self.running -= 1

    def _reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], dice: float) -> None:
        f = self.faults
        if f.status:
            _send(handler, f.status, {"error": {"message": "refused", "code": f.code}})
            return
        for share, kind in ((f.error, "error"), (f.overload, "overload"), (f.slow, "slow"),
                            (f.cut, "cut"), (f.garbage, "garbage")):  # fmt: skip
            dice -= share
            if dice < 0:
                self._misbehave(handler, kind)
                return
        answer = _answer(body, self.stop_reason)
        with self.lock:
            if self._server is None:
                handler.close_connection = True
                with contextlib.suppress(OSError):
                    handler.connection.shutdown(socket.SHUT_RDWR)
                return
            self.served += 1
        _send(handler, 200, answer)

    def _misbehave(self, handler: BaseHTTPRequestHandler, kind: str) -> None:
        if kind == "error":
            _send(handler, 500, {"error": {"message": "it broke"}})
        elif kind == "overload":
            _send(handler, 429, {"error": {"message": "too fast"}},
                  {"Retry-After": self.faults.retry_after})  # fmt: skip
        elif kind == "slow":
            time.sleep(self.faults.slow_seconds)
            _send(handler, 200, {"choices": []})
        elif kind == "cut":
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", "5000")
            handler.end_headers()
            handler.wfile.write(b'{"choices": [{"mess')
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            payload = b"<html>gateway</html>"
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(payload)))
            handler.end_headers()
            handler.wfile.write(payload)


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None
) -> None:
    payload = json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)


def _answer(body: dict[str, Any], stop_reason: bool) -> dict[str, Any]:
    """Goes somewhere that the last message names: by the dialogue's hash (and the seed's, when sampling)."""
    text = body["messages"][-1]["content"] if "messages" in body else str(body["prompt"])
    salt = str(body.get("seed", "")) if body["temperature"] > 0 else ""
    whole = json.dumps(body.get("messages", text))
    number = int(hashlib.sha256((salt + whole).encode()).hexdigest(), 16)
    places = re.findall(r"\b[a-z]+ \d+\b", text) or ["look"]
    said = f"<think>hm</think><action>go to {places[number % len(places)]}"
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if "</action>" not in body.get("stop", []):
        said += "</action> and then some"
    if stop_reason:
        choice["stop_reason"] = "</action>" if number % 2 else None
    if "messages" in body:
        choice["message"] = {"role": "assistant", "content": said}
    else:
        choice["text"] = said
    return {
        "id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice],
        "usage": {"prompt_tokens": len(text) // 4, "completion_tokens": 10, "total_tokens": 0},
    }  # fmt: skip


def main() -> None:
    """A process of its own: ``fake_endpoint.py PORT DIE_AT SEED FAULTS``."""
    port, die_at, seed, faults = sys.argv[1:]
    server = FakeEndpoint(
        Faults(**json.loads(faults)), port=int(port), die_at=int(die_at), seed=int(seed)
    )
    server.start()
    print(server.port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
