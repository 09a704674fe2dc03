"""The parts that all three applications share: bodies, errors, metrics, and a complete OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

import paw_gym
from env_servers.gate import OPEN_PATHS
from env_servers.problems import MEDIA_TYPE, ProblemError

_TOKEN = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
}
"""ways to show a token"""
_KEY = {"client": {"type": "apiKey", "in": "header", "name": "X-PaW-Client"}}
"""what a client must show for its sessions if there is no token"""
CALLS_PATH = "/v1/calls"
"""path of a gateway's calls, for sessions"""
_REFERENCE = "#/components/schemas/{model}"
_SENTENCES = {
    404: "There is nothing at this path.",
    405: "This path does not take this method: the header Allow names those that it takes.",
}
_MISTAKES = 20
"""of a malformed request that are listed"""
_MEMBERS = 64
"""of one JSON object: each unknown one would be a mistake of its own"""
_OBJECTS = 8192
"""of one body: a batch of the longest has half as many, and each of a million would be parsed"""
_FEW = 1000
"""members of all objects together, up to which they are not counted for each object"""
_LONG = 64 << 10
"""bytes of a body from which on it is parsed in a thread"""
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([{}:])', re.DOTALL)
"""strings, and the signs outside of them that make objects"""


Whole = Annotated[
    int, BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
]
"""an integer of a strict model, also if a client writes 3.0, as JSON lets it"""
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""a list of which only the first mistake is reported: the next million cost nothing"""
Model = TypeVar("Model", bound=BaseModel)
Page = Callable[[str, ProblemError], Response | None]
"""renders an error at a path that people open; ``None``: the path is for programs"""


class Mistake(BaseModel):
    """One mistake of a malformed request."""

    detail: str
    pointer: str
    """JSON pointer to it"""


class Problem(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    exception: str | None = None
    """what an environment raised, if a wrong argument is to blame"""
    retry_after: int | None = None
    """seconds after which the same may succeed"""
    errors: list[Mistake] | None = None
    """the mistakes of a malformed request"""


def new_app(
    title: str,
    *,
    has_token: bool,
    bodies: Mapping[str, type[BaseModel]],
    page_for: Page = lambda path, problem: None,
    lifespan: Any = None,
) -> FastAPI:
    """An application without routes of its own yet, but with ``/openapi.json``.

    Args:
        has_token: whether clients must show a token (which ``Gate`` checks).
        bodies: by path, what its ``POST`` reads.
    """
    app = FastAPI(
        title=title, version=paw_gym.__version__, docs_url=None, redoc_url=None,
        redirect_slashes=False, lifespan=lifespan,
    )  # fmt: skip

    def openapi() -> dict[str, Any]:
        app.openapi_schema = app.openapi_schema or _document(app, has_token, bodies)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    async def answer(request: Request, error: Exception) -> Response:
        path, found = request.url.path, as_problem(error)
        return page_for(path, found) or found.response(path, getattr(error, "headers", None))

    for kind in (ProblemError, HTTPException, RequestValidationError, ValidationError, Exception):
        app.exception_handler(kind)(answer)
    return app


# --- bodies and answers ------------------------------------------------------------------------------


async def read(model: type[Model], request: Request) -> Model:
    """The body of a request; an empty one is an empty object. A long one is read in a thread.

    Finding its mistakes costs no more than reading a correct body: a list ends at its first mistake
    (``Many``), and no object of many members has more of them than one of ours.
    """
    body = await request.body() or b"{}"

    def parsed() -> Model:
        if body.count(b":") > _FEW or body.count(b"{") > _OBJECTS:
            _require_small_objects(body)
        return model.model_validate_json(body)

    return await asyncio.to_thread(parsed) if len(body) > _LONG else parsed()


def _require_small_objects(body: bytes) -> None:
    # a sign at a time: a reader of JSON would hold up all other requests until an object ends
    members, objects = [0], 0
    for found in _STRUCTURE.finditer(body):
        match found[1]:
            case b":":
                members[-1] += 1
                if members[-1] > _MEMBERS:
                    raise ProblemError(422, f"An object has at most {_MEMBERS} members.")
            case b"{":
                members.append(0)
                objects += 1
                if objects > _OBJECTS:
                    raise ProblemError(422, f"A body has at most {_OBJECTS:,} objects.")
            case b"}" if len(members) > 1:
                members.pop()


def refuses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The part of a route's document (``responses``) that states which problems it answers with."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


def json_answer(content: Any, status: int = 200) -> Response:
    """An answer in ASCII: what a request held need not be valid Unicode."""
    return Response(json.dumps(content), status, media_type="application/json")


# --- errors ------------------------------------------------------------------------------------------


def as_problem(error: Exception) -> ProblemError:
    """The problem that answers a request which an exception ended."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        found = error.errors()
        if isinstance(error, ValidationError):  # what was sent is not copied into it
            found = error.errors(include_url=False, include_context=False, include_input=False)
        mistakes = [_mistake(one) for one in found[:_MISTAKES]]
        where = mistakes[0]["pointer"].strip("/").replace("/", ".") or "the body"
        detail = f"{where}: {mistakes[0]['detail']}"[:1000]
        return ProblemError(422, detail, errors=mistakes)
    if isinstance(error, HTTPException):
        words = str(error.detail)
        if words == HTTPStatus(error.status_code).phrase:
            words = _SENTENCES.get(error.status_code, f"{words}.")
        return ProblemError(error.status_code, words)
    return ProblemError(500, "The server failed: its log says why.")


def _mistake(found: Mapping[str, Any]) -> dict[str, str]:
    place = [str(part) for part in found["loc"] if part != "body"]
    return {"detail": str(found["msg"]), "pointer": "".join(f"/{part}" for part in place)}


# --- the document ------------------------------------------------------------------------------------


def _document(
    app: FastAPI, has_token: bool, bodies: Mapping[str, type[BaseModel]]
) -> dict[str, Any]:
    """The OpenAPI document: what FastAPI knows, with the bodies, every error, and the ways to get in."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    models = [(model, "validation") for model in (*bodies.values(), Problem)]
    _, defined = models_json_schema(models, ref_template=_REFERENCE)  # type: ignore[arg-type]
    schemas |= defined["$defs"]
    components["securitySchemes"] = _TOKEN if has_token else _KEY
    shape = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if has_token:
                ways: list[Any] = [] if path in OPEN_PATHS else [{name: []} for name in _TOKEN]
                operation["security"] = ways
            elif path == CALLS_PATH:
                operation["security"] = [{name: []} for name in _KEY]
            # problems that the layers around a route answer with
            common = [403, 421]
            if operation.get("security"):
                common.append(401)
            if path in bodies:
                common += [408, 413, 415, 422]
                required = any(f.is_required() for f in bodies[path].model_fields.values())
                content = {"schema": {"$ref": _REFERENCE.format(model=bodies[path].__name__)}}
                body = {"required": required, "content": {"application/json": content}}
                operation["requestBody"] = body
            responses = operation["responses"]
            responses |= {str(status): words for status, words in refuses(*common).items()}
            for status, response in responses.items():
                if int(status) >= 400 and (status == "422" or "content" not in response):
                    response["content"] = shape
    return document
