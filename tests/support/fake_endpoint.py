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
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Faults:
    """Shares of requests that go wrong, each in its way, and how."""

    error: float = 0.0
    overload: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    garbage: float = 0.0
    retry_after: str = "0.02"
    slow_seconds: float = 1.0
    """longer than the client waits"""
    status: int | None = None
    """every request gets this status"""


_ONCE = ("500 then ok", "429 retry-after", "429", "hang once", "reset once", "truncated json once",
         "error in choice once")  # fmt: skip
"""behaviours that only every second request shows"""
_STATUS = {
    "500 always": (500, "it broke", None), "500 then ok": (500, "it broke", None),
    "401": (401, "Incorrect API key provided", "invalid_api_key"),
    "403": (403, "Your project may not use this model", None),
    "404 model": (404, "The model does not exist", "model_not_found"),
    "429 retry-after": (429, "too fast", None), "429": (429, "too fast", None),
    "429 quota": (429, "You exceeded your current quota", "insufficient_quota"),
}  # fmt: skip
_REFUSED = {
    "400 stop": ("stop", "Unsupported parameter: 'stop' is not supported with this model."),
    "400 max_tokens": ("max_tokens", "Unsupported parameter: 'max_tokens' is not supported with this "
                       "model. Use 'max_completion_tokens' instead."),
    "400 seed": ("seed", "Unrecognized request argument supplied: seed"),
    "400 temperature": ("temperature", "Unsupported value: 'temperature' does not support 0.5 with this "
                        "model. Only the default (1) value is supported."),
}  # fmt: skip


@dataclass
class FakeEndpoint:
    """``with FakeEndpoint() as server: server.url``; the same port after ``kill`` and ``start``."""

    faults: Faults = field(default_factory=Faults)
    served: int = 0
    """requests answered properly"""
    seen: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    """of Azure's header"""
    authorization: set[str] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    port: int = 0
    die_at: int = 0
    """the request that kills this process, unanswered; 0: none"""
    seed: int = 0
    """of the faults"""
    behaviour: str = "ok"
    """what it does to those who ask it: all are listed in test_endpoint_evaluation.py"""
    max_model_len: int | None = None
    """what ``/v1/models`` says; ``None``: there is no such page"""
    context_limit: int = 40
    """of "400 context": most words of a request"""
    asked_models: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.random = random.Random(self.seed)
        self._known: set[str] = set()
        self._hung = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                endpoint.asked_models += 1
                if endpoint.max_model_len is None:
                    _send(self, 404, {"error": {"message": "no such page"}})
                else:
                    models = [{"id": "model", "max_model_len": endpoint.max_model_len}]
                    _send(self, 200, {"object": "list", "data": models})

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
        self._hung.set()
        if self._server is not None:
            self.kill()

    def handle(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self.lock:
            self.seen += 1
            if self.seen == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.bodies.append(body)
            self.targets.append(handler.path)
            self.keys.append(handler.headers.get("api-key"))
            self.authorization.add(handler.headers.get("Authorization") or "")
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            dice = self.random.random()
            first = self._is_first(body)
        try:
            kind = self.behaviour.removesuffix(" once")
            shown = first or self.behaviour not in _ONCE
            if shown and self._behave(handler, body, kind):
                return
            self._reply(handler, body, dice)
        finally:
            with self.lock:
                self.running -= 1

    def _is_first(self, body: dict[str, Any]) -> bool:
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        first = digest not in self._known
        self._known.add(digest)
        return first

    def _behave(self, handler: Any, body: dict[str, Any], kind: str) -> bool:
        """Answers as a behaviour has it; whether it did."""
        if kind in _STATUS:
            status, message, code = _STATUS[kind]
            delay = {"Retry-After": self.faults.retry_after}
            headers = delay if kind == "429 retry-after" else None
            _send(handler, status, {"error": {"message": message, "code": code}}, headers)
        elif kind in _REFUSED and _REFUSED[kind][0] in body:
            field_name, message = _REFUSED[kind]
            error = {"message": message, "param": field_name, "code": "unsupported_parameter"}
            _send(handler, 400, {"error": error})
        elif kind == "400 context" and _words(body) > self.context_limit:
            message = (
                f"This model's maximum context length is {self.context_limit * 10} tokens. "
                f"However, your messages resulted in {_words(body) * 10} tokens."
            )
            error = {"message": message, "code": "context_length_exceeded"}
            _send(handler, 400, {"error": error})
        elif kind == "500 context" and _words(body) > self.context_limit:  # an older llama.cpp
            message = "the request exceeds the available context size. try increasing it"
            _send(handler, 500, {"error": {"message": message, "type": "server_error"}})
        elif kind == "hang":
            self._hung.wait(self.faults.slow_seconds)
            handler.close_connection = True
        elif kind == "reset":
            handler.close_connection = True
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # closing resets the connection
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()
        elif kind == "cut":
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", "5000")
            handler.end_headers()
            handler.wfile.write(b'{"choices": [{"mess')
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif kind == "stop in thought" and "stop" in body:
            # a parser has taken the thought, in which the server met a stop text
            message = {"content": None, "reasoning_content": "It ends with "}
            choice = {"message": message, "finish_reason": "stop", "stop_reason": "</action>"}
            _send(handler, 200, {"choices": [choice]})
        elif kind in _RAW:
            status, content_type, text = _RAW[kind]
            _send_text(handler, status, content_type, text)
        else:
            return False
        return True

    def _reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], dice: float) -> None:
        f = self.faults
        if f.status:
            _send(handler, f.status, {"error": {"message": "refused"}})
            return
        for share, kind in (
            (f.error, "500 always"),
            (f.overload, "429 retry-after"),
            (f.slow, "hang"),
            (f.cut, "cut"),
            (f.garbage, "truncated json"),
        ):
            dice -= share
            if dice < 0:
                self._behave(handler, body, kind)
                return
        answer = _answer(body)
        if self.behaviour in _ALTERED:
            answer = _ALTERED[self.behaviour](answer)
        with self.lock:
            if self._server is None:
                handler.close_connection = True
                with contextlib.suppress(OSError):
                    handler.connection.shutdown(socket.SHUT_RDWR)
                return
            self.served += 1
        _send(handler, 200, answer)


def _words(body: dict[str, Any]) -> int:
    """Of the whole dialogue; its tokens are ten a word, so that estimates have to follow reports."""
    return sum(len(str(m["content"]).split()) for m in body.get("messages", []))


_HALF = json.dumps({
    "choices": [{"message": {"content": "<think>h"}, "finish_reason": "error",
                 "error": {"code": 502, "message": "Upstream error"}}]
})  # fmt: skip
_RAW = {
    "html 200": (200, "text/html", "<!DOCTYPE html><html><body>Welcome</body></html>"),
    "html 502": (502, "text/html", "<html>\n<h1>Bad gateway</h1>\n</html>"),
    "empty choices": (200, "application/json", '{"object": "chat.completion", "choices": []}'),
    "stream": (200, "text/event-stream",
               'data: {"choices": [{"delta": {"content": "<think>"}}]}\n\ndata: [DONE]\n\n'),
    "truncated json": (200, "application/json", '{"choices": [{"message": {"content": "<th'),
    "error in choice": (200, "application/json", _HALF),
}  # fmt: skip
"""replies that are no answers: status, content type, body"""


def _message(reason: str | None = None, **changed: Any) -> Any:
    """A reply with other fields in its message, and another finish reason."""

    def alter(reply: dict[str, Any]) -> dict[str, Any]:
        choice = reply["choices"][0]
        choice["message"] |= changed
        choice["finish_reason"] = reason or choice["finish_reason"]
        return reply

    return alter


def _text(change: Any) -> Any:
    def alter(reply: dict[str, Any]) -> dict[str, Any]:
        message = reply["choices"][0]["message"]
        message["content"] = change(message["content"])
        return reply

    return alter


def _thought_in(field_name: str) -> Any:
    def alter(reply: dict[str, Any]) -> dict[str, Any]:
        message = reply["choices"][0]["message"]
        thought, _, rest = message["content"].partition("</think>")
        message[field_name] = thought.removeprefix("<think>")
        message["content"] = rest
        return reply

    return alter


def _without_usage(reply: dict[str, Any]) -> dict[str, Any]:
    del reply["usage"]
    return reply


def _with_absurd_usage(reply: dict[str, Any]) -> dict[str, Any]:
    reply["usage"] = {"prompt_tokens": float("inf"), "completion_tokens": 1e30}
    return reply


def _without_reason(reply: dict[str, Any]) -> dict[str, Any]:
    reply["choices"][0]["finish_reason"] = None
    return reply


def _in_parts(reply: dict[str, Any]) -> dict[str, Any]:
    message = reply["choices"][0]["message"]
    quoted = [{"type": "text", "text": "Not <action>left</action>."}]
    text = {"type": "text", "text": message["content"]}
    message["content"] = [{"type": "thinking", "thinking": quoted}, text]
    return reply


def _call(action: str) -> dict[str, Any]:
    function = {"name": "act", "arguments": json.dumps({"action": action})}
    return {"id": "call_1", "type": "function", "function": function}


_ALTERED: dict[str, Any] = {
    "null content": _message(content=None),
    "no usage": _without_usage,
    "absurd usage": _with_absurd_usage,
    "stop kept": _text(lambda text: text.partition("</action>")[0] + "</action>"),
    "stop stripped": _text(lambda text: text.partition("</action>")[0]),
    "unclosed tags": _text(lambda text: text.replace("</think>", "").partition("</action>")[0]),
    "reasoning_content": _thought_in("reasoning_content"),
    "reasoning": _thought_in("reasoning"),
    "thought without opening": _text(lambda text: text.removeprefix("<think>")),
    "length": _message("length", content="<think>I could go on and on"),
    "length in thought": _message("length", content="", reasoning_content="I could go on and on"),
    "tool calls": _message("tool_calls", content=None, tool_calls=[_call("right")]),
    "refusal": _message(content=None, refusal="I will not."),
    "content filter": _message("content_filter", content=""),
    "content parts": _in_parts,
    "stop_sequence": _message("stop_sequence"),
    "EOS": _message("EOS"),
    "no reason": _without_reason,
    "tool call in text": _message(
        content='<tool_call>{"name": "act", "arguments": {"action": "right"}}</tool_call>'
    ),
    "prose": _message(content="I would rather talk about the weather."),
}
"""replies that differ from the usual one"""

Headers = dict[str, str]


def _send_text(
    handler: Any, status: int, content_type: str, text: str, headers: Headers | None = None
) -> None:
    payload = text.encode()
    handler.send_response(status)
    for name, value in {"Content-Type": content_type, **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)


def _send(handler: Any, status: int, body: Any, headers: Headers | None = None) -> None:
    _send_text(handler, status, "application/json", json.dumps(body), headers)


def _answer(body: dict[str, Any]) -> dict[str, Any]:
    """Goes somewhere that the last message names: by a hash of the dialogue (and the seed)."""
    text = body["messages"][-1]["content"] if "messages" in body else str(body["prompt"])
    salt = str(body.get("seed", "")) if body["temperature"] > 0 else ""
    whole = json.dumps(body.get("messages", text))
    number = int(hashlib.sha256((salt + whole).encode()).hexdigest(), 16)
    if "Turn left or right." in text:  # the small environment of the matrix
        said = "<think>hm</think><action>right"
    else:
        places = re.findall(r"\b[a-z]+ \d+\b", text) or ["look"]
        said = f"<think>hm</think><action>go to {places[number % len(places)]}"
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if "<action>" in said and "</action>" not in body.get("stop", []):
        said += "</action> and then some"
    if "messages" in body:
        choice["message"] = {"role": "assistant", "content": said}
    else:
        choice["text"] = said
    return {
        "id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice],
        "usage": {"prompt_tokens": 10 * _words(body), "completion_tokens": 10, "total_tokens": 0},
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
