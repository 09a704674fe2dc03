"""JSON over a kept HTTP connection, one for each thread, with retries and the server's pauses."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from paw_gym.remote.errors import RemoteError, ServerUnavailableError

_ATTEMPTS = 4
_BACKOFF = 0.25
"""seconds before the second attempt to connect; doubled for each one after it"""
_PATIENCE = 120.0
"""seconds to go on asking a gateway that is too busy"""
_LONGEST_PAUSE = 30.0


class Connection:
    """Posts to one gateway. May be used by several threads, and in a process forked from this one.

    Args:
        url: its address; a path in it comes before every path asked for.
        headers: sent with every request.
        timeout: seconds to wait for an answer.
        wait: sleeps.

    Raises:
        ValueError: not an address of the form ``http://host:port``.
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        timeout: float,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"url: expected an address such as 'http://127.0.0.1:8000', got {url!r}."
            )
        if timeout <= 0:
            raise ValueError(f"timeout is above 0 seconds, got {timeout}.")
        self.url = url.rstrip("/")
        self._secure, self._address = parts.scheme == "https", (parts.hostname, parts.port)
        self._base, self._timeout, self._wait = parts.path.rstrip("/"), timeout, wait
        self._headers = {"Content-Type": "application/json", **headers}
        self._local = threading.local()

    def post(self, path: str, payload: Any, insist: bool = True) -> Any:
        """Sends a request and gives the JSON of its answer. What is sent may be received twice.

        Args:
            path: below the gateway's address.
            payload: JSON.
            insist: try again where nothing answers, or the gateway is too busy.

        Raises:
            ServerUnavailableError: no answer, no entry, or no room for too long.
            RemoteError: the request is refused.
        """
        body = json.dumps(payload).encode()
        give_up = time.monotonic() + (_PATIENCE if insist else 0.0)
        while True:
            status, retry_after, content = self._deliver(path, body, _ATTEMPTS if insist else 1)
            if status == 200:
                return json.loads(content)
            said = _message(content)
            if status not in (429, 503) or time.monotonic() > give_up:
                break
            self._wait(min(_LONGEST_PAUSE, retry_after))
        if status in (401, 403):
            raise ServerUnavailableError(
                f"{self.url} answered {status}: {said} Give the gateway's token as token='...', or in "
                "the environment variable PAW_GATEWAY_TOKEN."
            )
        if status >= 500 or status == 429:
            raise ServerUnavailableError(f"{self.url} answered {status}: {said}")
        raise RemoteError(f"{self.url} refused the request ({status}): {said}")

    def _deliver(self, path: str, body: bytes, attempts: int) -> tuple[int, float, bytes]:
        for attempt in range(attempts):
            if attempt:
                self._wait(_BACKOFF * 2.0 ** (attempt - 1))
            try:
                return self._once(path, body)
            except TimeoutError as error:
                self._forget()
                raise ServerUnavailableError(
                    f"{self.url} did not answer within {self._timeout:g} s."
                ) from error
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                reason = error
        raise ServerUnavailableError(
            f"No gateway answers at {self.url} ({type(reason).__name__}: {reason}). Start one with "
            "`paw serve gateway`, then call reset()."
        ) from reason

    def _once(self, path: str, body: bytes) -> tuple[int, float, bytes]:
        connection = self._connection()
        connection.request("POST", self._base + path, body, self._headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.will_close:
            self._forget()
        try:
            pause = float(answer.headers.get("Retry-After", "1"))
        except ValueError:
            pause = 1.0
        return answer.status, max(0.05, pause), content

    def _connection(self) -> http.client.HTTPConnection:
        held = getattr(self._local, "held", None)
        if held is not None and held[0] == os.getpid():  # never that of the parent process
            return held[1]  # type: ignore[no-any-return]
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        host, port = self._address
        assert host is not None
        connection = kind(host, port, timeout=self._timeout)
        self._local.held = (os.getpid(), connection)
        return connection

    def _forget(self) -> None:
        held = getattr(self._local, "held", None)
        if held is not None:
            held[1].close()
            self._local.held = None


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]
