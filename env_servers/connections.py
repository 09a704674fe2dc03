"""Bounded connections: the time a request may take to arrive, the size of its head, the number per address.

uvicorn bounds none of these when it reads with httptools, and waits for ever for the rest of a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_HEAD = 64 << 10
"""bytes of a request's address and headers, about: a piece of the network's is taken whole"""
HEAD_CHECKS = 10
"""checks, a second apart, by which they must have arrived; a server that is held up waits on"""
BODY_CHECKS = 60
"""the same for a body"""
PER_ADDRESS = 512
"""connections of one address; when it opens another, the oldest that waits for its client is closed"""


class HttpConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed when a request takes too long to arrive, or has too large a head."""

    cycle: Any
    """uvicorn's: the newest request whose head has arrived"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._checks: int | None = 0
        """checks of what is arriving; ``None``: nothing is"""
        self._head = 0
        """bytes of a head that is not complete"""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes an older one if its address has too many."""
        super().connection_made(transport)
        others = self._of_address()
        if len(others) >= PER_ADDRESS:
            waiting = next((other for other in others if other.is_waiting), None)
            (waiting or self).refuse(503, "This address has too many connections.")
            if waiting is None:
                return
        others[self] = None

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._leave()

    def data_received(self, data: bytes) -> None:
        """Reads on, and notes what is still missing."""
        before, in_body = self.cycle, self._in_body
        super().data_received(data)
        if self.cycle is not before:
            self._head, self._checks = 0, 0 if self._in_body else None
        elif in_body:
            self._checks = self._checks if self._in_body else None
        else:
            self._head += len(data)
            self._checks = self._checks or 0
            if self._head > MAX_HEAD and not self.transport.is_closing():
                self.refuse(431, f"The head of a request has at most {MAX_HEAD:,} bytes.")

    def check(self) -> None:
        """Closes it when its request takes too long to arrive. To be called every second."""
        if self._checks is None:
            return
        self._checks += 1
        if self._checks > (BODY_CHECKS if self._in_body else HEAD_CHECKS):
            self.refuse(408, "The request did not arrive in time.")

    def refuse(self, status: int, words: str) -> None:
        self._leave()
        head = f"HTTP/1.1 {status} \r\ncontent-type: text/plain\r\ncontent-length: {len(words)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{words}".encode())
        self.transport.close()

    @property
    def is_waiting(self) -> bool:
        """True if it is the client's turn."""
        return self.cycle is None or self.cycle.response_complete or self._in_body

    @property
    def _in_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _of_address(self) -> dict[HttpConnection, None]:
        """The connections of its address, oldest first."""
        peers: dict[str, dict[HttpConnection, None]]
        peers = self.server_state.__dict__.setdefault("paw_peers", {})
        return peers.setdefault(self._address, {})

    def _leave(self) -> None:
        others = self._of_address()
        others.pop(self, None)
        if not others:
            self.server_state.__dict__["paw_peers"].pop(self._address, None)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""
