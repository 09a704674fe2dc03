"""The gateway over HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

import paw_gym
from env_servers.application import CALLS_PATH, new_app, read, refuses
from env_servers.gate import TOKEN, Gate
from env_servers.gateway import calls as asked
from env_servers.gateway.gateway import Gateway, Limits
from env_servers.gateway.settings import Offer
from env_servers.gateway.workers import Fleet
from env_servers.problems import ProblemError
from env_servers.sessions import Client, SessionStore

MAX_BODY = 16 << 20
"""bytes of a request: those of many environments come together"""
KEY_HEADER = "x-paw-client"
"""a secret of the client's own: its sessions answer to nobody who does not show it"""
_KEY_LENGTHS = range(16, 257)
BODIES = {CALLS_PATH: asked.Request}


def create_app(
    offer: Offer,
    limits: Limits | None = None,
    *,
    modules: Sequence[str] = (),
    tokens: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Gate:
    """The gateway as an ASGI application; ``tokens`` and ``hosts`` are those of ``Gate``.

    Args:
        modules: those that register environments; imported in each worker.
    """
    most = limits or Limits()
    sessions = SessionStore(most.session_seconds, most.sessions, most.sessions_per_client)
    gateway = Gateway(offer, most, sessions, Fleet(most.workers, modules, most.memory_mb))

    app = new_app(
        "Gateway", has_token=bool(tokens), bodies=BODIES, lifespan=lambda _: gateway.running()
    )
    add_routes(app, gateway)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The gateway's state."""
        return {
            "status": "ok",
            "version": paw_gym.__version__,
            "sessions": len(sessions),
            "pending": gateway.pending,
            "workers": gateway.fleet.ready,
            "worker_deaths": gateway.fleet.deaths,
        }

    @app.get("/v1/envs")
    async def envs() -> dict[str, Any]:
        """The environments that are served, and the settings that clients may choose."""
        from paw_gym.registration import text_env_spec

        listed = [
            {"env_id": env_id, "description": text_env_spec(env_id).description}
            for env_id in sorted(offer.env_ids)
        ]
        return {"envs": listed, "kwargs": sorted(offer.kwargs)}

    return Gate(app, tokens or None, max_body=MAX_BODY, hosts=hosts)


def client_of(request: Request) -> Client:
    """The client of a request, by what only it can show."""
    key = request.headers.get(KEY_HEADER, "")
    # not the header that showed it: what a header holds besides an accepted token is easily made up
    token = request.scope.get(TOKEN) or ""
    if len(key) not in _KEY_LENGTHS and (key or not token):
        words = f"Send a secret of your own, of 16 to 256 characters, as the header {KEY_HEADER}"
        raise ProblemError(401, f"{words}: sessions are bound to it.")
    address = request.client.host if request.client else "unknown"
    hashed = hashlib.sha256(token.encode()).hexdigest()
    owner = hashlib.sha256(json.dumps([token, key]).encode()).digest()
    return Client(owner, f"{address} {hashed[:16]}")


def add_routes(app: FastAPI, gateway: Gateway) -> None:
    @app.post(CALLS_PATH, response_model=asked.Results, responses=refuses(429, 503))
    async def calls(request: Request) -> Response:
        """Many calls for different sessions; they are executed at the same time."""
        client = client_of(request)
        wanted = await read(asked.Request, request)
        results = await gateway.answer(client, wanted.calls)
        return Response(_joined(results), media_type="application/json")


def _joined(results: list[bytes | ProblemError]) -> bytes:
    # the answers are JSON already: they go through as the workers wrote them
    parts = []
    for number, result in enumerate(results):
        if isinstance(result, ProblemError):
            status, answer = result.status, result.content(f"{CALLS_PATH}#/calls/{number}")
        else:
            status, answer = 200, result
        parts.append(b'{"status": %d, "answer": %b}' % (status, answer))
    return b'{"results": [%s]}' % b", ".join(parts)
