"""The pages and data of ``paw view`` as a read-only ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import paw_gym
from env_servers.application import as_problem
from env_servers.gate import Gate
from env_servers.problems import MEDIA_TYPE, ProblemError
from paw_gym.internals.files import json_text
from paw_train.viewer.lists import Page
from paw_train.viewer.store import RunStore

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

Name = Annotated[str, Query(alias="run", max_length=500)]
Names = Annotated[list[str], Query(alias="run", max_length=100)]
Key = Annotated[str, Query(max_length=300)]


def create_app(root: str | Path, *, token: str | None = None, hosts: Sequence[str] = ()) -> Gate:
    """The viewer of the run or runs in a folder."""
    store = RunStore(Path(root))

    @asynccontextmanager
    async def following(_: FastAPI) -> AsyncIterator[None]:
        store.start()
        yield
        store.close()

    app = FastAPI(
        title="paw view",
        version=paw_gym.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=following,
    )
    _add_files(app)
    _add_data(app, store)
    _add_problems(app)
    return Gate(app, token, hosts=hosts)


def _add_files(app: FastAPI) -> None:
    """Our own files, read once: nothing from an address ever reaches the file system."""
    files = {
        entry.name: (entry.read_bytes(), _TYPES[Path(entry.name).suffix])
        for room in ("paw_train.viewer", "paw_train.reporting")
        for entry in resources.files(room).joinpath("static").iterdir()
        if Path(entry.name).suffix in _TYPES
    }

    @app.get("/")
    def page() -> Response:
        body, kind = files["index.html"]
        return Response(body, headers=HEADERS, media_type=kind)

    @app.get("/static/{name}")
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        body, kind = files[name]
        return Response(body, headers=HEADERS, media_type=kind)

    @app.get("/health")
    def health() -> Response:
        return _json({"status": "ok", "version": paw_gym.__version__})


def _add_data(app: FastAPI, store: RunStore) -> None:
    @app.get("/api/runs")
    def runs() -> Response:
        folder = store.root.resolve().name
        listed = {"folder": folder, "first": store.first, "runs": store.listed()}
        return _json({**listed, "version": paw_gym.__version__})

    @app.get("/api/pulse")
    def pulse(name: Annotated[str | None, Query(alias="run", max_length=500)] = None) -> Response:
        return _json(store.pulse(name))

    @app.get("/api/run")
    def run(name: Name) -> Response:
        return _json(store.described(name))

    @app.get("/api/curves")
    def curves(name: Name) -> Response:
        return _json(store.run(name).measurements.curves())

    @app.get("/api/state")
    def state(name: Name) -> Response:
        return _json(store.state(name))

    @app.get("/api/differences")
    def differences(names: Names) -> Response:
        return _json({"differences": store.differences(names)})

    @app.get("/api/episode")
    def episode(name: Name, key: Key) -> Response:
        return _json(store.episode(name, key))

    @app.get("/api/group")
    def group(name: Name, key: Key) -> Response:
        return _json({"episodes": store.group(name, key)})

    @app.get("/api/list")
    def rows(wanted: Annotated[Page, Query()]) -> Response:
        return _json(store.page(wanted))


def _add_problems(app: FastAPI) -> None:
    async def problem(_: Request, error: Exception) -> Response:
        if isinstance(error, ValueError | OSError):
            error = ProblemError(409, f"The run's files changed while they were read: {error}")
        found = as_problem(error)
        return Response(found.content(), found.status, headers=HEADERS, media_type=MEDIA_TYPE)

    for kind in (ProblemError, HTTPException, RequestValidationError, ValueError, OSError):
        app.exception_handler(kind)(problem)


def _json(value: Any) -> Response:
    # escapes: the content of an episode need not be valid Unicode
    body = json_text(value, separators=(",", ":"))
    return Response(body, headers=HEADERS, media_type="application/json")
