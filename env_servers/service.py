"""A service's address, start and stop, its connections and its log."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from paw_gym.internals.files import kept, kept_path

LAST_SECONDS = 30.0
"""how long what is being answered may take when a service is stopped"""

MAX_HEAD = 64 << 10
"""bytes of a request's address and headers, about: a piece of the network's is taken whole"""
HEAD_CHECKS = 10
"""checks, a second apart, by which they must have arrived; a server that is held up waits on"""
BODY_CHECKS = 60
"""the same for a body"""
PER_ADDRESS = 512
"""connections of one address; when it opens another, the oldest that waits for its client is closed"""
_CONNECTIONS = 900
"""and requests at a time; a process may usually have 1,024 files open"""
_TICKS = 10
"""of uvicorn's, about a second: so often connections are checked"""

_log = logging.getLogger("env_servers")


@dataclass(frozen=True)
class ServiceSettings:
    """The address of a service, and the token that it asks for."""

    host: str = "127.0.0.1"
    """the address to listen on; others than this machine's own need a token"""
    port: int = 8000
    """0: any free one"""
    token: str | None = None
    """what clients must show: as a bearer token, or as the password that a browser asks for"""
    is_new: bool = False
    """whether the token was made for this start: it is printed, and kept for this user's clients"""
    certificate: str | None = None
    """a PEM file with the certificate (chain): the service speaks TLS"""
    private_key: str | None = None
    """a PEM file with the certificate's key, if it is not in the same file"""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is between 0 and 65535, got {self.port}.")
        for file in (self.certificate, self.private_key):
            if file is not None and not Path(file).is_file():
                raise FileNotFoundError(f"There is no PEM file {file}.")
        if self.token is not None and not (self.token.strip() and self.token.isascii()):
            raise ValueError(
                "The token is empty or has characters beyond ASCII, which HTTP does not carry."
            )
        if self.token is None and not _is_loopback(self.host):
            raise ValueError(
                f"Listening on {self.host} lets other machines in, so a token is needed: leave out "
                "--no-token, or listen on 127.0.0.1."
            )


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound to a host's addresses, all to one port; nobody else gets it meanwhile."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(f"--host {host}: this machine has no such address ({error}).") from error
    bound: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        bound.append(socket.socket(family, kind, protocol))
        if os.name == "posix":  # an address that was released a moment ago is free
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            bound[-1].bind((address[0], port, *address[2:]))
        except OSError as error:
            for one in bound:
                one.close()
            words = f"Port {port} of {host} cannot be listened on: {error.strerror}."
            raise OSError(f"{words} Give another --port (0 takes any free one).") from error
        port = bound[-1].getsockname()[1]
    return bound


def address_of(settings: ServiceSettings, sockets: list[socket.socket]) -> str:
    """The address at which a service is reached, with the port that it got."""
    scheme = "https" if settings.certificate else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{sockets[0].getsockname()[1]}"


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, and the message (which is an object itself, or text)."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z"}
        line["level"] = record.levelname.lower()
        message = record.getMessage()
        line.update(json.loads(message) if message.startswith("{") else {"message": message})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def run(
    app: ASGIApp,
    settings: ServiceSettings,
    *,
    sockets: list[socket.socket] | None = None,
    verbose: bool = False,
) -> None:
    """Serves until Ctrl-C or SIGTERM; requests that are being answered are finished first.

    A request that has no answer when the time has run out gets 503.

    Args:
        sockets: from ``bound_sockets``, if the address was bound before.
    """
    sockets = sockets or bound_sockets(settings.host, settings.port)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("env_servers", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if verbose or name == "uvicorn" else logging.WARNING)
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEAD,
        log_config=None,
        access_log=False,
        # uvicorn declares a whole number of seconds, but takes any number
        timeout_graceful_shutdown=LAST_SECONDS,  # type: ignore[arg-type]
        limit_concurrency=_CONNECTIONS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
        proxy_headers=False,  # limits count by address: one in a header is easily made up
    )
    with ExitStack() as while_running:
        if settings.is_new and settings.token is not None:
            address = address_of(settings, sockets)
            try:
                while_running.enter_context(kept(kept_path(address), settings.token))
            except OSError as error:
                _log.warning("Clients have to be told the token, which cannot be kept: %s", error)
        server = _Server(config)
        server.held = while_running
        server.run(sockets)


class HttpConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed when a request takes too long to arrive, or has too large a head.

    uvicorn bounds neither when it reads with httptools, nor the number of connections of an address.
    """

    cycle: Any
    """uvicorn's: the newest request whose head has arrived"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.opened = time.monotonic()
        self._checks: int | None = 0
        """checks of what is arriving; ``None``: nothing is"""
        self._head = 0
        """bytes of a head that is not complete"""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes an older one if its address has too many."""
        super().connection_made(transport)
        others = [other for other in self.server_state.connections if self._is_beside(other)]
        if len(others) >= PER_ADDRESS:
            waiting = [other for other in others if other.is_waiting]
            oldest = min(waiting, key=lambda other: other.opened, default=self)
            oldest.refuse(503, "This address has too many connections.")

    def _is_beside(self, other: Any) -> bool:
        """True for another open connection of its address."""
        if not isinstance(other, HttpConnection) or other is self or other.transport.is_closing():
            return False
        mine, theirs = self.client or ("",), other.client or ("",)
        return bool(mine[0] == theirs[0])

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


class _Server(uvicorn.Server):
    """Checks its connections."""

    held: ExitStack
    """closed after shutting down, because uvicorn then ends the process by its signal"""

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpConnection):
                    connection.check()
        return bool(await super().on_tick(counter))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            self.held.close()
