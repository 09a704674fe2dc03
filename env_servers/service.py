"""What every service shares: who may come in, limits of a request, logs, metrics, starting and stopping."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

MAX_BODY = 1 << 20
"""bytes of a request's body"""
_OPEN_PATHS = frozenset({"/health"})
"""paths that need no token"""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""seconds; bounds of the histogram of latencies"""

log = logging.getLogger("env_servers")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class ServiceSettings:
    """How a service is reached."""

    host: str = "127.0.0.1"
    """the address to listen on; others than this machine's own need a token"""
    port: int = 8000
    """0: any free one"""
    token: str | None = None
    """what clients must show: as a bearer token, or as the password that a browser asks for"""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is between 0 and 65535, got {self.port}.")
        if self.token is not None and not self.token.strip():
            raise ValueError("The token is empty.")
        if self.token is None and not _is_loopback(self.host):
            raise ValueError(
                f"Listening on {self.host} lets other machines in: give a token as well, "
                "or listen on 127.0.0.1."
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Metrics:
    """Counters and latencies of a service, in Prometheus's text form."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests", "Requests by status.", ["method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "http_request_seconds", "Latency.", buckets=_BUCKETS, registry=self.registry
        )

    def text(self) -> bytes:
        """The present state."""
        return generate_latest(self.registry)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Gate:
    """The outermost layer: checks the token and the size of a request, counts and logs it.

    Args:
        app: the service.
        metrics: where to count.
        token: what clients must show; ``None``: nothing.
    """

    def __init__(self, app: App, metrics: Metrics, token: str | None) -> None:
        self._app, self._metrics, self._token = app, metrics, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles an ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noting_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            if self._token is not None and not self._may_enter(scope["path"], headers):
                await _refuse(noting_send, 401, "A token is needed.")
            elif _declared_length(headers) > MAX_BODY:
                await _refuse(noting_send, 413, f"A request has at most {MAX_BODY:,} bytes.")
            else:
                await self._app(scope, _limited(receive), noting_send)
        except _TooLargeError:
            await _refuse(noting_send, 413, f"A request has at most {MAX_BODY:,} bytes.")
        finally:
            self._note(scope, status, time.perf_counter() - start)

    def _may_enter(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if path in _OPEN_PATHS:
            return True
        kind, _, value = headers.get(b"authorization", b"").partition(b" ")
        given = value.strip()
        if kind.lower() == b"basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != b"bearer":
            return False
        return hmac.compare_digest(given, (self._token or "").encode())

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, str(status)).inc()
        self._metrics.seconds.observe(seconds)
        if log.isEnabledFor(logging.INFO):
            client = scope.get("client")
            event = {
                "event": "request",
                "method": method,
                "path": scope["path"][:200],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "client": client[0] if client else None,
            }
            log.info(json.dumps(event))


class _TooLargeError(Exception):
    """The body is longer than it may be (and than it said)."""


def _declared_length(headers: dict[bytes, bytes]) -> int:
    try:
        return int(headers.get(b"content-length", b"0"))
    except ValueError:
        return 0


def _limited(receive: Receive) -> Receive:
    total = 0

    async def counting() -> MutableMapping[str, Any]:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY:
            raise _TooLargeError
        return message

    return counting


async def _refuse(send: Send, status: int, words: str) -> None:
    body = json.dumps({"error": "refused", "message": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="paw-gym", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, and the message (which is an object itself, or text)."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z"}
        line["level"] = record.levelname.lower()
        message = record.getMessage()
        line.update(json.loads(message) if message.startswith("{") else {"message": message})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def run(app: App, settings: ServiceSettings, *, verbose: bool = False) -> None:
    """Serves until Ctrl-C or SIGTERM; requests that are being answered are finished first.

    Args:
        app: the service.
        settings: where to listen.
        verbose: log every request.
    """
    import uvicorn

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("env_servers", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if verbose or name == "uvicorn" else logging.WARNING)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        limit_concurrency=2048,
    )
    uvicorn.Server(config).run()
