"""JSON over HTTP with retries and one kept connection per thread: the client of every server here.

It uses ``http.client``, so that a plain install can reach a retrieval server, a gateway, the shop or a chat
endpoint. Redirects are not followed and proxies not used: a token goes to the address it was given for and
nowhere else.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paw_gym.internals.replies import MalformedAnswer

BUSY = frozenset({429, 503})
"""statuses of a server that has no room at the moment"""
_PASSING = BUSY | {500, 502, 504}
"""statuses that may be gone at the next attempt"""
_LONGEST_PAUSE = 30.0
"""seconds; a server that asks for a longer pause is asked again after this one"""


class HttpError(RuntimeError):
    """A request that failed for good; no ``status``: there was no answer, or none that could be read."""

    def __init__(self, message: str, status: int | None, detail: str) -> None:
        super().__init__(message)
        self.status, self.detail = status, detail


@dataclass
class _FailedError(Exception):
    """One attempt that failed."""

    detail: str
    status: int | None = None
    pause: float = 0.0
    """seconds that the server asks to be left alone (``Retry-After``); 0: it does not say"""
    may_pass: bool = True
    """true if another attempt may fare better"""


class JsonClient:
    """Asks one server. May be used by several threads, be pickled, and be used in a forked process.

    Args:
        url: its address; a path in it comes before every path asked for, a query after it.
        token: sent as a bearer token; a function is asked for it at each new connection.
        timeout: seconds to wait for a connection, and between two bytes of an answer.
        attempts: how often a request is sent before it counts as failed.
        backoff: seconds before the second attempt; doubled for each one after it.
        wait: sleeps.
        patience: seconds to go on asking a server that is busy (429, 503), whatever ``attempts`` is.
        retry_timeouts: whether an attempt that timed out is followed by others.
        headers: sent with every request.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str | None] | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        wait: Callable[[float], None] = time.sleep,
        *,
        patience: float = 0.0,
        retry_timeouts: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        wrong = ValueError(f"An address is http://host:port or https://host, got {url!r}.")
        try:
            parts = urlsplit(url)
            self._address = (parts.hostname or "", parts.port)
        except ValueError as error:
            raise wrong from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise wrong
        if timeout <= 0 or attempts < 1 or backoff < 0:
            raise ValueError(
                "timeout is above 0, attempts at least 1, backoff 0 or more; got "
                f"{timeout}, {attempts}, {backoff}."
            )
        self.url = url.rstrip("/")
        self._secure, self._base = parts.scheme == "https", parts.path.rstrip("/")
        self._query = parts.query
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._token = token
        self.timeout, self.attempts, self.backoff, self._wait = timeout, attempts, backoff, wait
        self.patience, self.retry_timeouts = patience, retry_timeouts
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def ask(
        self,
        method: str,
        path: str,
        payload: Any = None,
        *,
        insist: bool = True,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """Sends a request and gives the JSON of its answer. What is sent may be received twice.

        Args:
            read: makes the result of the JSON; its ``MalformedAnswer`` is a failed attempt.

        Raises:
            HttpError: refused, no answer after all attempts, or one that is not JSON.
        """
        body = None if payload is None else json.dumps(payload).encode()
        patient_until = time.monotonic() + (self.patience if insist else 0.0)
        attempts = self.attempts if insist else 1
        failed = 0
        while True:
            try:
                return self._attempt(method, path, body, read)
            except _FailedError as failure:
                self._forget()
                if failure.status in BUSY and time.monotonic() < patient_until:
                    pause = failure.pause or 1.0
                else:
                    failed += 1
                    if failed == attempts or not failure.may_pass:
                        raise self._error(path, failed, failure) from failure
                    pause = max(failure.pause, self.backoff * 2.0 ** (failed - 1))
            self._wait(min(_LONGEST_PAUSE, pause))

    def _attempt(
        self, method: str, path: str, body: bytes | None, read: Callable[[Any], Any]
    ) -> Any:
        try:
            answer, content = self._exchange(method, self._target(path), body)
        except TimeoutError as error:
            detail = f"nothing came within {self.timeout:g} s"
            raise _FailedError(detail, may_pass=self.retry_timeouts) from error
        except (OSError, http.client.HTTPException) as error:
            raise _FailedError(f"{type(error).__name__}: {error}") from error
        except ValueError:  # of http.client, whose text has the token
            why = "its address or the token has characters that HTTP does not allow"
            raise _FailedError(why, may_pass=False) from None
        if answer.status >= 300:
            may_pass = answer.status in _PASSING
            raise _FailedError(_detail(content), answer.status, _pause(answer), may_pass)
        try:
            value = json.loads(content) if content else None
        except (ValueError, RecursionError) as error:
            message = f"{self.url}{path} answered with something else than JSON."
            raise HttpError(message, None, message) from error
        try:
            return read(value)
        except MalformedAnswer as error:
            raise _FailedError(str(error)) from error

    def _target(self, path: str) -> str:
        asked, _, query = (self._base + path).partition("?")
        queries = "&".join(part for part in (self._query, query) if part)
        return f"{asked or '/'}?{queries}" if queries else asked or "/"

    def _error(self, path: str, attempts: int, failure: _FailedError) -> HttpError:
        reason, status = failure.detail, failure.status
        if status is not None:
            reason = f"status {status}: {reason}"
        if status is not None and not failure.may_pass:
            message = f"{self.url}{path} refused the request ({reason})."
        else:
            times = "once" if attempts == 1 else f"{attempts} times"
            message = f"{self.url}{path} was asked {times} and did not answer ({reason})."
        return HttpError(message, status, failure.detail)

    def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        held = self._held()
        connection = held or self._connect()
        try:
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
        except (http.client.BadStatusLine, ConnectionError):
            if held is None:
                raise
            self._forget()  # the server closed an idle connection: that is not a failed attempt
            return self._exchange(method, path, body)
        content = answer.read()
        if answer.will_close:
            self._forget()
        return answer, content

    def _held(self) -> http.client.HTTPConnection | None:
        process, connection = getattr(self._local, "held", (0, None))
        return connection if process == os.getpid() else None  # never that of the parent process

    def _connect(self) -> http.client.HTTPConnection:
        token = self._token() if callable(self._token) else self._token
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token.strip()}"
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=self.timeout)
        self._local.held = (os.getpid(), connection)
        return connection

    def _forget(self) -> None:
        connection = self._held()
        if connection is not None:
            connection.close()
            self._local.held = (0, None)


def _detail(content: bytes) -> str:
    """The detail of a refusal: the sentence of problem details (RFC 9457), or the beginning of its text."""
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:200].decode("utf-8", "replace")


def _pause(answer: http.client.HTTPResponse) -> float:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    except ValueError:  # a date: a server of ours sends seconds
        return 0.0
