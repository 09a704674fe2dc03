"""The outermost layer of every server: which clients are admitted, and what a request may be."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs

from env_servers.problems import MEDIA_TYPE, ProblemError

MAX_BODY = 1 << 20
"""bytes of a request's body"""
OPEN_PATHS = frozenset({"/health"})
"""paths that need no token"""
TOKEN = "env_servers.token"
"""key of an ASGI scope: the token that ``Gate`` accepted; ``None``: none is asked for"""
_JSON, _FORM = b"application/json", b"application/x-www-form-urlencoded"
_DISCARDED = 4
"""times ``max_body``: so much of a body that is too large is read, so that the client reads the answer"""
_HUNG_UP = 499
"""logged for a request whose client did not send all of it"""

log = logging.getLogger("env_servers")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_Headers = dict[bytes, bytes]


class Gate:
    """Checks a request's host, token, origin, type and size, in this order; logs it.

    No part of a body is read before the rest is right, and a service gets it whole. The token that was
    accepted is in the scope, as ``TOKEN``: nothing else that a client sends identifies it.

    Args:
        token: what clients must show, or several of which they must show one; ``None``: nothing.
        max_body: bytes of a request's body.
        hosts: names by which the service is reached, besides this machine's own and any address.
        forms: beginnings of the paths that take a browser's forms; all others take JSON.
    """

    def __init__(
        self,
        app: App,
        token: str | Sequence[str] | None,
        max_body: int = MAX_BODY,
        *,
        hosts: Sequence[str] = (),
        forms: tuple[str, ...] = (),
    ) -> None:
        self._app, self._max_body, self._forms = app, max_body, forms
        given = [token] if isinstance(token, str) else token
        self._tokens = None if given is None else [one.strip().encode() for one in given]
        self._cookies = {token: _cookie_of(token) for token in self._tokens or ()}
        self._hosts = {_plain(name) for name in ("localhost", socket.gethostname(), *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "There is none here."})
            return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, begun = time.perf_counter(), 500, False

        async def noting_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        try:
            if await self._follow_link(scope, noting_send):
                return
            headers = self._admit(scope)
            self._require_type(scope, headers)
            body = await self._read(headers, receive)
            if body is None:
                status = _HUNG_UP
            else:
                await self._app(scope, _again(body, receive), noting_send)
        except ProblemError as problem:
            await _refuse(noting_send, scope["path"], problem)
        except asyncio.CancelledError:  # the server ends, and has waited for as long as it may
            if begun:
                raise
            words = "The server was stopped before it had the answer: ask again when it is back."
            await _refuse(noting_send, scope["path"], ProblemError(503, words, retry_after=5))
        finally:
            self._note(scope, status, time.perf_counter() - start)

    # --- who comes in --------------------------------------------------------------------------------

    def _admit(self, scope: Scope) -> _Headers:
        """The headers of a client that may come in; notes the token that let it in."""
        self._require_host(scope)
        headers = {name.lower(): value for name, value in scope["headers"]}
        scope[TOKEN] = None if self._tokens is None else self._accepted(scope, headers)
        if self._tokens is not None and scope[TOKEN] is None and scope["path"] not in OPEN_PATHS:
            raise ProblemError(401, "A token is needed: send it as a bearer token.")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2].lower() != headers[b"host"].lower():
            raise ProblemError(403, "A page of another server may not call this one.")
        return headers

    def _require_host(self, scope: Scope) -> None:
        """Answers to this server's own names only: no foreign page reaches it by rebinding its DNS."""
        given = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(given) != 1:
            raise ProblemError(421, f"A request has one header Host, got {len(given)}.")
        name = _host_name(given[0].decode("latin-1"))
        if name not in self._hosts and not _is_address(name):
            raise ProblemError(
                421, "This host name is not this server's: start it with --allow-host NAME."
            )

    def _accepted(self, scope: Scope, headers: _Headers) -> str | None:
        """The accepted token that the client shows, by a header or by the cookie of a link."""
        assert self._tokens is not None
        shown, cookie = _shown_token(headers), _cookie(headers, _cookie_name(scope))
        # all are compared, so that the time taken does not show which one is nearly right
        same = [
            token
            for token in self._tokens
            if hmac.compare_digest(shown, token) | hmac.compare_digest(cookie, self._cookies[token])
        ]
        return same[0].decode() if same else None

    async def _follow_link(self, scope: Scope, send: Send) -> bool:
        """Answers ``/?token=...``, the link that a server prints: the browser keeps a cookie instead."""
        if self._tokens is None or scope["path"] != "/" or not scope["query_string"]:
            return False
        self._require_host(scope)
        shown = parse_qs(scope["query_string"]).get(b"token", [b""])[0]
        same = [token for token in self._tokens if hmac.compare_digest(shown, token)]
        if not same:
            return False
        secure = b"; Secure" if scope["scheme"] == "https" else b""
        cookie = _cookie_name(scope) + b"=" + self._cookies[same[0]]
        cookie += b"; Path=/; HttpOnly; SameSite=Lax" + secure
        headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return True

    # --- what it sends -------------------------------------------------------------------------------

    def _require_type(self, scope: Scope, headers: _Headers) -> None:
        """Refuses bodies of the types that a page may send anywhere without asking first."""
        if not _has_body(headers):
            return
        wanted = _FORM if scope["path"].startswith(self._forms) else _JSON
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != wanted:
            raise ProblemError(415, f"The Content-Type of this path is {wanted.decode()}.")

    async def _read(self, headers: _Headers, receive: Receive) -> bytes | None:
        """The whole body; ``None`` if the client hung up before its end."""
        if not _has_body(headers):
            return b""
        most, size, parts = self._max_body, _declared_length(headers), []
        if size > _DISCARDED * most:
            raise _too_large(most)
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > _DISCARDED * most:
                break
        if size > most:
            raise _too_large(most)
        return b"".join(parts)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        if log.isEnabledFor(logging.INFO):
            client = scope.get("client")
            event = {
                "event": "request",
                "method": scope["method"][:20],
                "path": scope["path"][:200],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "client": client[0] if client else None,
            }
            log.info(json.dumps(event))


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return _plain(host.rpartition(":")[0] if ":" in host else host)


@lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown_token(headers: _Headers) -> bytes:
    """The token that a client shows, as a bearer token or as a browser's password; empty: none."""
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    given = value.strip()
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return given if kind.lower() == b"bearer" else b""


def _cookie_name(scope: Scope) -> bytes:
    """A name for each port: a browser sends a host's cookies to all of its servers."""
    return b"paw-%d" % (scope["server"][1] or 0) if scope.get("server") else b"paw"


def _cookie(headers: _Headers, name: bytes) -> bytes:
    for pair in headers.get(b"cookie", b"").split(b";"):
        key, _, value = pair.strip().partition(b"=")
        if key == name:
            return value
    return b""


def _cookie_of(token: bytes) -> bytes:
    """The cookie that a browser keeps: it opens the same doors, and does not give the token away."""
    return hmac.digest(token, b"cookie", hashlib.sha256).hex().encode()


def _has_body(headers: _Headers) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _declared_length(headers: _Headers) -> int:
    try:
        return int(headers.get(b"content-length", b"0"))
    except ValueError:
        return 0


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, then what else comes."""
    given = False

    async def message() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return message


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, f"A request has at most {most:,} bytes.")


async def _refuse(send: Send, path: str, problem: ProblemError) -> None:
    """Answers with a problem, and has the connection closed: what else arrives on it is not read."""
    body = problem.content(path)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if problem.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="paw-gym", charset="UTF-8"'))
    if "retry_after" in problem.more:
        headers.append((b"retry-after", b"%d" % problem.more["retry_after"]))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
