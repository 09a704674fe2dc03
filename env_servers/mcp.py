"""An environment as tools of the Model Context Protocol: ``reset``, ``step`` and ``list_actions``.

Requests of the protocol's present version come without a connection of their own, so ``reset`` names a
session that the other calls take. A client is shown an agent's observations, and success and score when
the episode is over: never a solution, nor anything else of ``info``.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import paw_gym
from env_servers.gate import Gate
from env_servers.sessions import Client, Session, SessionStore
from paw_gym.registration import make_text_env

_ANYBODY = Client(b"", "")
"""sessions are found by their names alone, which cannot be guessed"""


@dataclass(eq=False, kw_only=True)
class _Play(Session):
    """A client's environment, played by one call at a time."""

    env: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        if self.env is not None:
            self.env.close()


def create_server(env_id: str, kwargs: dict[str, Any], sessions: int = 256) -> MCPServer:
    """The server, for any transport of the package ``mcp``.

    A call that never returns keeps one of its threads: environments that may hang belong behind
    ``paw serve gateway``, which stops them. A session that is unused for an hour is closed.
    """
    store = SessionStore(limit=sessions, limit_per_client=sessions)
    storing = threading.Lock()  # tools run in threads

    @contextmanager
    def playing(name: str | None) -> Iterator[_Play]:
        """A client's session, or a new one; the client is told its mistakes."""
        new = _Play(client=_ANYBODY)
        try:
            with storing:
                play = store.get(name, _ANYBODY, _Play) if name else store.add(new)
            with play.lock:
                play.env = play.env or make_text_env(env_id, **kwargs)
                yield play
        except Exception as error:
            with storing:
                store.remove(new)
            raise ToolError(str(error.args[0] if error.args else error)) from error

    @asynccontextmanager
    async def lifespan(server: MCPServer) -> AsyncIterator[None]:
        yield
        for session in store:
            store.remove(session)

    server = MCPServer(
        env_id, version=paw_gym.__version__, instructions="Call reset, then step to the end.",
        log_level="WARNING", lifespan=lifespan,
    )  # fmt: skip

    @server.tool()
    def reset(
        session: str | None = None, task_id: str | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Start an episode: a new session's, or the next one of a session that you have."""
        with playing(session) as play:
            options = {} if task_id is None else {"task_id": task_id}
            observation, info = play.env.reset(seed=seed, options=options)
            known = {key: info[key] for key in ("task_id", "instruction")}
            return {"session": play.id, **known, "observation": observation}

    @server.tool()
    def step(session: str, action: str) -> dict[str, Any]:
        """Take an action in a session's episode."""
        with playing(session) as play:
            observation, reward, terminated, truncated, info = play.env.step(action)
            at_the_end = ["success", "score"] if terminated or truncated else []
            return {
                "observation": observation,
                "reward": float(reward),
                "terminated": terminated,
                "truncated": truncated,
                **{key: info[key] for key in ("action_is_valid", *at_the_end)},
            }

    @server.tool()
    def list_actions(session: str) -> dict[str, Any]:
        """List the actions that would be accepted now; null: they cannot be listed."""
        with playing(session) as play:
            listed = play.env.unwrapped.list_actions()
            return {"actions": None if listed is None else list(listed)}

    return server


def create_app(server: MCPServer, token: str | None = None, hosts: Sequence[str] = ()) -> Gate:
    """Streamable HTTP at ``/mcp``; ``Gate`` checks host, origin and token."""

    @server.custom_route("/health", methods=["GET"])
    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(json_response=True, transport_security=unchecked)
    return Gate(app, token, hosts=hosts)
