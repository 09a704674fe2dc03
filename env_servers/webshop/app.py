"""The WebShop server: the site, the JSON API, health and metrics in one application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import Gauge
from starlette.exceptions import HTTPException

import paw_gym
from env_servers.service import Gate, Metrics
from env_servers.webshop.api import api_routes
from env_servers.webshop.sessions import SessionStore
from env_servers.webshop.site import Site, site_routes
from env_servers.webshop.store import Store
from paw_gym.envs.webshop.env import ShopSettings

_SITE_PATHS = ("/shop", "/favicon")


def create_app(
    settings: ShopSettings | None = None,
    *,
    sessions: SessionStore | None = None,
    token: str | None = None,
) -> Gate:
    """The server as an ASGI application.

    Args:
        settings: what the shop is made of; ``None``: the generated products.
        sessions: where sessions are kept; ``None``: a store with the default limits.
        token: what clients must show; ``None``: nothing.

    Raises:
        ValueError, FileNotFoundError, ImportError: the shop cannot be made; says why.
    """
    # an empty store is false
    store = Store(settings or ShopSettings(), SessionStore() if sessions is None else sessions)
    site, metrics = Site(store), Metrics()
    _gauges(store, metrics)
    app = FastAPI(title="WebShop", version=paw_gym.__version__, docs_url=None, redoc_url=None)
    app.include_router(api_routes(store))
    app.include_router(site_routes(site))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        products, held = len(store.shop.catalogue), len(store.sessions)
        return {
            "status": "ok",
            "version": paw_gym.__version__,
            "products": products,
            "sessions": held,
        }

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    answer = _problems(site)
    app.exception_handler(HTTPException)(answer)
    app.exception_handler(RequestValidationError)(answer)
    return Gate(app, metrics, token)


def _gauges(store: Store, metrics: Metrics) -> None:
    held = Gauge("webshop_sessions", "Sessions now.", registry=metrics.registry)
    held.set_function(lambda: len(store.sessions))
    opened = Gauge("webshop_sessions_opened", "Sessions so far.", registry=metrics.registry)
    opened.set_function(lambda: store.sessions.opened)


def _problems(site: Site) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Errors as pages for people, as JSON for programs."""

    async def answer(request: Request, error: Exception) -> Response:
        details: Any = None
        if isinstance(error, HTTPException):
            status, words = error.status_code, str(error.detail)
        else:
            assert isinstance(error, RequestValidationError)
            status, words = 422, "The request is not of the form that is expected here."
            details = [
                {"where": list(map(str, problem["loc"])), "problem": problem["msg"]}
                for problem in error.errors()
            ]
        path = request.url.path
        if path == "/" or path.startswith(_SITE_PATHS):
            return site.problem(status, words)
        content = {"error": "refused", "message": words, "details": details}
        # escapes: what a request holds need not be valid Unicode
        return Response(json.dumps(content), status, media_type="application/json")

    return answer
