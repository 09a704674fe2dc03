"""JSON over HTTP with timeouts and retries: what the remote and the simulated retriever speak.

On ``http.client``, so that a plain install can reach a retrieval server. One connection a thread is
kept open.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from paw_gym.retrieval.base import RetrieverError

_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
"""statuses that may pass"""


class StatusError(RetrieverError):
    """The server answered with a status that trying again will not change."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JsonClient:
    """Asks one server.

    Args:
        url: its address; a path in it comes before every path asked for.
        token: sent as a bearer token.
        timeout: seconds to wait for a connection, and between two bytes of an answer.
        attempts: how often a request is sent before it has failed.
        backoff: seconds before the second attempt; doubled for each one after it.
        wait: sleeps.

    Raises:
        ValueError: not an address of the form ``http://host:port``, or settings out of range.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"An address is http://host:port or https://host, got {url!r}.")
        if timeout <= 0 or attempts < 1 or backoff < 0:
            raise ValueError(
                "timeout is above 0, attempts at least 1, backoff 0 or more; got "
                f"{timeout}, {attempts}, {backoff}."
            )
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port)
        self._base = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.timeout, self.attempts, self.backoff, self._wait = timeout, attempts, backoff, wait
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def ask(self, method: str, path: str, payload: Any = None) -> Any:
        """Sends a request and returns the JSON of the answer.

        Raises:
            StatusError: the server refuses the request (a 4xx status).
            RetrieverError: no answer after all attempts, or one that is no JSON.
        """
        body = None if payload is None else json.dumps(payload).encode()
        reason = ""
        for attempt in range(self.attempts):
            if attempt:
                self._wait(self.backoff * 2.0 ** (attempt - 1))
            try:
                status, text = self._once(method, self._base + path, body)
            except TimeoutError:
                reason = f"nothing came within {self.timeout:g} s"
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if status < 300:
                    return self._parsed(text, path)
                reason = f"status {status}: {text[:200].decode('utf-8', 'replace')}"
                if status not in _TRY_AGAIN:
                    raise StatusError(status, f"{self.url}{path} refused the request ({reason}).")
            self._forget()
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        raise RetrieverError(f"{self.url}{path} was asked {times} and did not answer ({reason}).")

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = getattr(self._local, "connection", None)
        fresh = connection is None
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            host, port = self._address
            connection = kind(host, port, timeout=self.timeout)
            self._local.connection = connection
        try:
            connection.request(method, path or "/", body, self._headers)
            response = connection.getresponse()
        except (http.client.BadStatusLine, ConnectionError):
            if fresh:
                raise
            self._forget()  # the server closed an idle connection: that is no failed attempt
            return self._once(method, path, body)
        text = response.read()
        if response.will_close:
            self._forget()
        return response.status, text

    def _forget(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _parsed(self, text: bytes, path: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RetrieverError(
                f"{self.url}{path} answered with something else than JSON."
            ) from error
