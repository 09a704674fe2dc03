"""The outermost layer of every server: which clients are admitted, and what a request may be."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Sequence
from functools import lru_cache

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env_servers.problems import ProblemError

MAX_BODY = 1 << 20
"""bytes of a request's body"""
OPEN_PATHS = frozenset({"/health"})
"""paths that need no token"""
TOKEN = "env_servers.token"
"""key of an ASGI scope: the token that ``Gate`` accepted; ``None``: none is asked for"""
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_DISCARDED = 4
"""times ``max_body``: so much of a body that is too large is read, so that the client reads the answer"""
_HUNG_UP = 499
"""logged for a request whose client did not send all of it"""

log = logging.getLogger("env_servers")


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
        app: ASGIApp,
        token: str | Sequence[str] | None,
        max_body: int = MAX_BODY,
        *,
        hosts: Sequence[str] = (),
        forms: tuple[str, ...] = (),
    ) -> None:
        self._app, self._max_body, self._forms = app, max_body, forms
        given = [token] if isinstance(token, str) else token
        self._tokens = None if given is None else [one.strip().encode() for one in given]
        # a cookie opens the same doors, and does not give the token away
        self._cookies = {
            token: hmac.digest(token, b"cookie", hashlib.sha256).hex()
            for token in self._tokens or ()
        }
        self._hosts = {_plain(name) for name in ("localhost", socket.gethostname(), *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(Request(scope, receive), send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "There is none here."})
        else:
            await self._app(scope, receive, send)

    async def _answer(self, request: Request, send: Send) -> None:
        scope, start, status, begun = request.scope, time.perf_counter(), 500, False

        async def noting_send(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        async def refuse(problem: ProblemError) -> None:
            # its connection is closed: what else arrives on it is not read
            headers = {"Connection": "close"}
            if problem.status == 401:
                headers["WWW-Authenticate"] = 'Basic realm="paw-gym", charset="UTF-8"'
            await problem.response(scope["path"], headers)(scope, request.receive, noting_send)

        try:
            self._require_host(request)
            link = self._followed_link(request)
            if link is not None:
                await link(scope, request.receive, noting_send)
                return
            self._admit(request)
            self._require_type(request)
            whole = [{"type": "http.request", "body": await self._body(request)}]

            async def receive() -> Message:
                return whole.pop() if whole else await request.receive()

            await self._app(scope, receive, noting_send)
        except ClientDisconnect:
            status = _HUNG_UP
        except ProblemError as problem:
            await refuse(problem)
        except asyncio.CancelledError:  # the server ends, and has waited for as long as it may
            if begun:
                raise
            words = "The server was stopped before it had the answer: ask again when it is back."
            await refuse(ProblemError(503, words, retry_after=5))
        finally:
            _note(scope, status, time.perf_counter() - start)

    def _require_host(self, request: Request) -> None:
        """Answers to this server's own names only: no foreign page reaches it by rebinding its DNS."""
        given = request.headers.getlist("host")
        if len(given) != 1:
            raise ProblemError(421, f"A request has one header Host, got {len(given)}.")
        name = _host_name(given[0])
        if name not in self._hosts and not _is_address(name):
            raise ProblemError(
                421, "This host name is not this server's: start it with --allow-host NAME."
            )

    def _admit(self, request: Request) -> None:
        """Lets in who may come in; notes the token that was accepted."""
        scope, accepted = request.scope, None
        if self._tokens is not None:
            accepted = self._accepted(_shown_token(request), request.cookies.get(_cookie(scope)))
            if accepted is None and scope["path"] not in OPEN_PATHS:
                raise ProblemError(401, "A token is needed: send it as a bearer token.")
        scope[TOKEN] = None if accepted is None else accepted.decode()
        origin, host = request.headers.get("origin"), request.headers["host"]
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise ProblemError(403, "A page of another server may not call this one.")

    def _accepted(self, shown: str | None, cookie: str | None = None) -> bytes | None:
        """The token that a client shows, by a header, by a link or by the cookie of one."""
        token_shown, cookie_shown = ((text or "").encode() for text in (shown, cookie))
        # all are compared, so that the time taken does not show which one is nearly right
        same = [
            token
            for token in self._tokens or ()
            if hmac.compare_digest(token_shown, token)
            | hmac.compare_digest(cookie_shown, self._cookies[token].encode())
        ]
        return same[0] if same else None

    def _followed_link(self, request: Request) -> RedirectResponse | None:
        """The answer to ``/?token=...``, the link that a server prints: the browser keeps a cookie."""
        scope = request.scope
        if scope["path"] != "/" or not scope["query_string"]:
            return None
        token = self._accepted(request.query_params.get("token"))
        if token is None:
            return None
        cookie = f"{_cookie(scope)}={self._cookies[token]}; Path=/; HttpOnly; SameSite=Lax"
        cookie += "; Secure" if scope["scheme"] == "https" else ""
        return RedirectResponse("/", 303, {"Set-Cookie": cookie})

    def _require_type(self, request: Request) -> None:
        """Refuses bodies of the types that a page may send anywhere without asking first."""
        wanted = _FORM if request.scope["path"].startswith(self._forms) else _JSON
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if _has_body(request) and given != wanted:
            raise ProblemError(415, f"The Content-Type of this path is {wanted}.")

    async def _body(self, request: Request) -> bytes:
        """The whole body."""
        if not _has_body(request):
            return b""
        most, size, parts = self._max_body, 0, []
        too_large = ProblemError(413, f"A request has at most {most:,} bytes.")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > _DISCARDED * most:
            raise too_large
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > _DISCARDED * most:
                break
        if size > most:
            raise too_large
        return b"".join(parts)


def _note(scope: Scope, status: int, seconds: float) -> None:
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


def _shown_token(request: Request) -> str:
    """The token that a client shows, as a bearer token or as a browser's password; empty: none."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    given = value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode("latin-1").partition(":")[2]
        except ValueError:
            return ""
    return given if kind.lower() == "bearer" else ""


def _cookie(scope: Scope) -> str:
    """A cookie's name, another for each port: a browser sends a host's cookies to all of its servers."""
    return f"paw-{scope['server'][1] or 0}" if scope.get("server") else "paw"


def _has_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
