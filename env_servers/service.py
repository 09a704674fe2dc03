"""How every service is reached, started and stopped, and what it logs."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_servers.connections import MAX_HEAD, HttpConnection, WebSocketConnection
from env_servers.gate import App
from paw_gym.internals.cache import kept, kept_path

DRAIN_SECONDS = 30.0
"""how long what is being answered may take when a service is stopped"""
_LAST_SECONDS = 5.0
"""the same for requests that a service is still answering when it has drained for as long as it may"""

_CONNECTIONS = 2048
"""and requests at a time"""
_TICKS = 10
"""of uvicorn's, about a second: so often connections are checked"""

_log = logging.getLogger("env_servers")


@dataclass(frozen=True)
class ServiceSettings:
    """How a service is reached."""

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
    """a PEM file with the certificate's key, where it is not in the same file"""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is between 0 and 65535, got {self.port}.")
        for file in (self.certificate, self.private_key):
            if file is not None and not Path(file).is_file():
                raise FileNotFoundError(f"There is no PEM file {file}.")
        if self.token is not None and not self.token.strip():
            raise ValueError("The token is empty.")
        if self.token is None and not _is_loopback(self.host):
            raise ValueError(
                f"Listening on {self.host} lets other machines in, so a token is needed: leave out "
                "--no-token, or listen on 127.0.0.1."
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound to a host's addresses, all at one port; nobody else gets it meanwhile.

    Raises:
        OSError: an address that cannot be listened on; states why and what to do.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(f"--host {host}: this machine has no such address ({error}).") from error
    bound: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        bound.append(socket.socket(family, kind, protocol))
        if os.name == "posix":  # an address that was let go a moment ago is free
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            bound[-1].bind((address[0], port, *address[2:]))
        except OSError as error:
            for one in bound:
                one.close()
            raise OSError(
                f"Port {port} of {host} cannot be listened on: {error.strerror}. Give another --port "
                "(0 takes any free one)."
            ) from error
        port = bound[-1].getsockname()[1]
    return bound


def address_of(settings: ServiceSettings, sockets: list[socket.socket]) -> str:
    """The address that a service is reached at, with the port that it got."""
    scheme = "https" if settings.certificate else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{sockets[0].getsockname()[1]}"


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


def run(
    app: App,
    settings: ServiceSettings,
    *,
    sockets: list[socket.socket] | None = None,
    verbose: bool = False,
    drain: Callable[[], Callable[[], bool]] | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    max_message: int = 16 << 20,
) -> None:
    """Serves until Ctrl-C or SIGTERM; requests that are being answered are finished first.

    What has no answer when the time for that is over gets 503.

    Args:
        app: the service.
        settings: where to listen.
        sockets: of ``bound_sockets``, where the address was taken before.
        verbose: log every request.
        drain: called at SIGTERM, where a service has more to finish than requests; gives a function
            that says whether all is done. A second signal ends the service at once.
        drain_seconds: how long what is to be finished may take.
        max_message: bytes of a WebSocket's message.
    """
    import uvicorn

    sockets = sockets or bound_sockets(settings.host, settings.port)
    _allow_connections()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("env_servers", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if verbose or name == "uvicorn" else logging.WARNING)
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws=WebSocketConnection,
        h11_max_incomplete_event_size=MAX_HEAD,
        log_config=None,
        access_log=False,
        # uvicorn declares a whole number of seconds, and waits as long as any number says
        timeout_graceful_shutdown=drain_seconds if drain is None else _LAST_SECONDS,  # type: ignore[arg-type]
        limit_concurrency=_CONNECTIONS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
        ws_max_size=max_message,
        proxy_headers=False,  # limits count by address: one that a header names is made up easily
    )
    server = uvicorn.Server(config)
    _check_connections(server)
    if drain is not None:
        _drain_at_sigterm(server, drain, drain_seconds)
    with ExitStack() as while_running:
        if settings.is_new and settings.token is not None:
            address = address_of(settings, sockets)
            try:
                while_running.enter_context(kept(kept_path(address), settings.token))
            except OSError as error:
                _log.warning("Clients have to be told the token, which cannot be kept: %s", error)
        _close_at_shutdown(server, while_running)
        server.run(sockets)


def _close_at_shutdown(server: Any, held: ExitStack) -> None:
    """Closes what is held when a server has shut down: uvicorn ends the process by its signal then."""
    stop = server.shutdown

    async def shutdown(sockets: Any = None) -> None:
        try:
            await stop(sockets)
        finally:
            held.close()

    server.shutdown = shutdown


def _allow_connections() -> None:
    """Has this process keep as many files open as it takes connections, as far as it may."""
    if os.name == "posix":
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * _CONNECTIONS if most == resource.RLIM_INFINITY else min(2 * _CONNECTIONS, most)
        if now != resource.RLIM_INFINITY and now < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _check_connections(server: Any) -> None:
    tick = server.on_tick

    async def on_tick(counter: int) -> bool:
        if counter % _TICKS == 0:
            for connection in list(server.server_state.connections):
                if isinstance(connection, HttpConnection):
                    connection.check()
        return bool(await tick(counter))

    server.on_tick = on_tick


def _drain_at_sigterm(
    server: Any, drain: Callable[[], Callable[[], bool]], drain_seconds: float
) -> None:
    stop, tick = server.handle_exit, server.on_tick
    finished: list[Callable[[], bool]] = []
    deadline = 0.0

    def handle_exit(number: int, frame: Any) -> None:
        nonlocal deadline
        if number == signal.SIGTERM and not finished:
            finished.append(drain())
            deadline = time.monotonic() + drain_seconds
        else:
            stop(number, frame)

    async def on_tick(counter: int) -> bool:
        if finished and (finished[0]() or time.monotonic() > deadline):
            return True
        return bool(await tick(counter))

    server.handle_exit, server.on_tick = handle_exit, on_tick
