"""The gateway over HTTP and WebSocket, with health and metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect

import paw_gym
from env_servers.gateway.calls import ONE_CALL, REQUEST
from env_servers.gateway.gateway import BadRequestError, BusyError, Gateway, Result, problem
from env_servers.gateway.sessions import Client
from env_servers.gateway.settings import Limits, Offer
from env_servers.service import Gate, Metrics

MAX_BODY = 16 << 20
"""bytes of a request: those of many environments come together"""
KEY_HEADER = "x-paw-client"
"""a secret of the client's own: its sessions answer to nobody who does not show it"""
_KEY_LENGTHS = range(16, 257)
_VERBS = ("reset", "step", "ask", "restore")


def create_app(
    offer: Offer,
    limits: Limits | None = None,
    *,
    modules: Sequence[str] = (),
    tokens: Sequence[str] = (),
) -> GatewayApp:
    """The gateway as an ASGI application.

    Args:
        offer: which environments clients may ask for, with which settings.
        limits: how much of everything; ``None``: the defaults.
        modules: imported in each worker: those that register environments.
        tokens: clients must show one of them; none: anybody who can reach the port may come in.
    """
    gateway = Gateway(offer, limits or Limits(), modules)
    metrics = Metrics()
    metrics.registry.register(_Collector(gateway))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.close()

    app = FastAPI(
        title="Gateway", version=paw_gym.__version__, docs_url=None, redoc_url=None,
        openapi_url=None, lifespan=lifespan,
    )  # fmt: skip
    _add_about(app, gateway, metrics)
    _add_calls(app, gateway)
    _add_sessions(app, gateway)
    _add_websocket(app, gateway)
    _add_error_handlers(app)
    return GatewayApp(app, metrics, tokens, gateway)


class GatewayApp(Gate):
    """The application, with the gateway in it.

    Args:
        app: the routes.
        metrics: where to count.
        tokens: what clients must show, one of them.
        gateway: what answers.
    """

    def __init__(self, app: Any, metrics: Metrics, tokens: Sequence[str], gateway: Gateway) -> None:
        super().__init__(app, metrics, tokens or None, max_body=MAX_BODY)
        self.gateway = gateway

    def drain(self) -> Callable[[], bool]:
        """Takes no new sessions; the function says whether all are done."""
        self.gateway.drain()
        return lambda: len(self.gateway.sessions) == 0 and self.gateway.pending == 0


def client_of(headers: Mapping[str, str], address: str) -> Client:
    """Who asks, by what only they can show.

    Raises:
        HTTPException: neither a token nor a key of the client's own.
    """
    key, token = headers.get(KEY_HEADER, ""), headers.get("authorization", "")
    if key and len(key) not in _KEY_LENGTHS:
        raise HTTPException(401, f"{KEY_HEADER} has 16 to 256 characters, got {len(key)}.")
    if not key and not token:
        raise HTTPException(
            401, f"Send a secret of your own as the header {KEY_HEADER}: sessions are bound to it."
        )
    hashed = hashlib.sha256(token.encode()).hexdigest()
    owner = hashlib.sha256(json.dumps([token, key]).encode()).digest()
    return Client(owner, f"{address} {hashed[:16]}")


def _client(request: Request) -> Client:
    return client_of(request.headers, request.client.host if request.client else "unknown")


def _add_about(app: FastAPI, gateway: Gateway, metrics: Metrics) -> None:
    @app.get("/health")
    async def health() -> Response:
        content = {
            "status": "draining" if gateway.draining else "ok",
            "version": paw_gym.__version__,
            "sessions": len(gateway.sessions),
            "pending": gateway.pending,
            "workers": gateway.fleet.ready,
        }
        return _json(content, 503 if gateway.draining else 200)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/envs")
    async def envs() -> Response:
        from paw_gym.registration import text_env_spec

        offer = gateway.offer
        listed = [
            {"env_id": env_id, "description": text_env_spec(env_id).description}
            for env_id in sorted(offer.env_ids)
        ]
        return _json({"envs": listed, "kwargs": sorted(offer.kwargs)})


def _add_calls(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/calls")
    async def calls(request: Request) -> Response:
        client = _client(request)
        parsed = REQUEST.validate_json(await request.body())
        results = await gateway.answer(client, parsed.calls)
        return Response(_joined(results), media_type="application/json")


def _add_sessions(app: FastAPI, gateway: Gateway) -> None:
    async def one(request: Request, call: dict[str, Any]) -> Response:
        client = _client(request)
        [result] = await gateway.answer(client, [ONE_CALL.validate_python(call)])
        return _plain(result)

    @app.post("/v1/sessions")
    async def open_session(request: Request) -> Response:
        return await one(request, {**await _object(request), "op": "open"})

    @app.delete("/v1/sessions/{session}")
    async def close_session(request: Request, session: str) -> Response:
        return await one(request, {"op": "close", "session": session})

    @app.post("/v1/sessions/{session}/{verb}")
    async def act(request: Request, session: str, verb: str) -> Response:
        if verb not in _VERBS:
            raise HTTPException(404, f"A session has {', '.join(_VERBS)}, not {verb[:40]!r}.")
        return await one(request, {**await _object(request), "op": verb, "session": session})


def _add_websocket(app: FastAPI, gateway: Gateway) -> None:
    @app.websocket("/v1/calls")
    async def calls(socket: WebSocket) -> None:
        try:
            client = client_of(socket.headers, socket.client.host if socket.client else "unknown")
        except HTTPException as error:
            await socket.close(1008, error.detail)
            return
        await socket.accept()
        with suppress(WebSocketDisconnect):
            while True:  # one message at a time: a client that does not read is not read from
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                data = message.get("text") or message.get("bytes") or ""
                await socket.send_text((await _answer(gateway, client, data)).decode())


async def _answer(gateway: Gateway, client: Client, message: str | bytes) -> bytes:
    name: int | str | None = None
    try:
        parsed = REQUEST.validate_json(message)
        name = parsed.id
        body = _joined(await gateway.answer(client, parsed.calls))
    except ValidationError as error:
        body = problem(422, _first(error), "ValueError").body
    except BadRequestError as error:
        body = problem(422, str(error), "ValueError").body
    except BusyError as error:
        body = problem(error.status, str(error), retry=error.seconds).body
    return b'{"id": %s, %s' % (json.dumps(name).encode(), body[1:])


def _joined(results: list[Result]) -> bytes:
    # the answers are JSON already: they go through as the workers wrote them
    parts = (b'{"status": %d, "answer": %s}' % result for result in results)
    return b'{"results": [%s]}' % b", ".join(parts)


async def _object(request: Request) -> dict[str, Any]:
    try:
        content = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise HTTPException(422, "The body is not JSON.") from None
    if not isinstance(content, dict):
        raise HTTPException(422, "The body is a JSON object.")
    return content  # lone surrogates in it are refused by the model


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # ASCII escapes: what a request holds need not be valid Unicode
    return Response(json.dumps(content), status, headers, media_type="application/json")


def _plain(result: Result) -> Response:
    retry = json.loads(result.body).get("retry_after") if result.status >= 429 else None
    headers = {"Retry-After": str(retry)} if retry else None
    return Response(result.body, result.status, headers, media_type="application/json")


def _first(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    where = ".".join(map(str, problems[0]["loc"])) or "the body"
    return f"{where}: {problems[0]['msg']}"[:1000]


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _plain(Result(error.status_code, problem(0, str(error.detail)).body))

    @app.exception_handler(ValidationError)
    async def malformed(request: Request, error: ValidationError) -> Response:
        return _plain(Result(422, problem(0, _first(error), "ValueError").body))

    @app.exception_handler(BadRequestError)
    async def wrong(request: Request, error: BadRequestError) -> Response:
        return _plain(Result(422, problem(0, str(error), "ValueError").body))

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        return _plain(Result(error.status, problem(0, str(error), retry=error.seconds).body))


class _Collector(Collector):
    """The gateway's numbers, read when they are asked for."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The present state."""
        gateway = self._gateway
        calls = CounterMetricFamily("gateway_calls", "Calls.", labels=["op", "status"])
        for (op, status), count in sorted(gateway.counts.items()):
            calls.add_metric([op, str(status)], count)
        yield calls
        for name, words, value in (
            ("sessions", "Sessions now.", len(gateway.sessions)),
            ("pending_calls", "Calls that are being answered.", gateway.pending),
            ("workers", "Workers that can work.", gateway.fleet.ready),
            ("draining", "1 after SIGTERM.", int(gateway.draining)),
        ):
            yield GaugeMetricFamily(f"gateway_{name}", words, value)
        for name, words, value in (
            ("sessions_opened", "Sessions so far.", gateway.sessions.opened),
            ("worker_deaths", "Workers that died.", gateway.fleet.deaths),
            ("sessions_replayed", "Sessions brought back.", gateway.replayed),
        ):
            yield CounterMetricFamily(f"gateway_{name}", words, value)
