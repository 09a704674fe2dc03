"""The retrieval server: Search-R1's format and a typed one in one application."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

import paw_gym
from env_servers.application import Many, Whole, json_answer, new_app, read, refuses
from env_servers.gate import MAX_BODY, Gate
from env_servers.problems import ProblemError
from env_servers.retrieval.batching import Batcher
from paw_gym.internals.printable import encodable
from paw_gym.retrieval.base import (
    Hit,
    Retriever,
    RetrieverError,
    SearchContext,
    wants_contexts,
)

_log = logging.getLogger("env_servers")
MAX_CHARS = 2_000
"""of a longer query, ``/retrieve`` reads so many; ``/v1/search`` refuses it"""
MAX_TOP_K = 100
_QUERIES_SCHEMA = {"type": "array", "description": "At most as many as GET /v1/info says."}
_TOP_K_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MAX_TOP_K}
TopK = Annotated[Whole, Field(ge=1, le=MAX_TOP_K), WithJsonSchema(_TOP_K_SCHEMA)]


class PlainRequest(BaseModel):
    """``POST /retrieve``, as Search-R1's clients send it: what a model wrote, a whole batch at once."""

    model_config = ConfigDict(strict=True)
    queries: Annotated[list[Any], WithJsonSchema(_QUERIES_SCHEMA)]
    """texts; another value finds nothing, and the others are answered"""
    topk: TopK | None = None
    return_scores: bool = False


class Context(BaseModel):
    """The context of a query, for a simulated search engine."""

    model_config = ConfigDict(strict=True)
    question: str
    golden_answers: Many[str] = Field(default_factory=list)
    seed: Whole = 0
    progress: float | None = Field(default=None, ge=0, le=1)


class TypedRequest(BaseModel):
    """``POST /v1/search``."""

    model_config = ConfigDict(strict=True)
    queries: Many[Annotated[str, Field(max_length=MAX_CHARS)]]
    top_k: TopK = 3
    contexts: Many[Context] | None = None


class PlainResults(BaseModel):
    """The passages of each query; each has its score beside it if that was asked for."""

    result: list[list[dict[str, Any]]]


class QueryResults(BaseModel):
    """The passages of one query, best first."""

    query: str
    hits: list[Hit]


class TypedResults(BaseModel):
    """The results of the queries, in their order."""

    results: list[QueryResults]


def create_app(
    retriever: Retriever,
    *,
    name: str = "",
    max_queries: int = 2_048,
    token: str | None = None,
    hosts: Sequence[str] = (),
    default_top_k: int = 3,
    **batching: Any,
) -> Gate:
    """The server as an ASGI application; ``token`` and ``hosts`` are those of ``Gate``.

    Args:
        max_queries: queries of one request.
        default_top_k: passages for a Search-R1 request that does not say how many.
    """
    if not 1 <= default_top_k <= MAX_TOP_K:
        raise ValueError(f"default_top_k is 1 to {MAX_TOP_K}, got {default_top_k}.")
    batcher = Batcher(retriever, **batching)
    app = new_app(
        "Retriever", has_token=token is not None, lifespan=lambda _: batcher.running(),
        bodies={"/retrieve": PlainRequest, "/v1/search": TypedRequest},
    )  # fmt: skip

    async def answer(
        queries: Sequence[str], top_k: int, contexts: Sequence[Context] | None
    ) -> list[list[Hit]]:
        passed = None
        if contexts is not None and wants_contexts(retriever):
            passed = [
                SearchContext(c.question, tuple(c.golden_answers), c.seed, c.progress)
                for c in contexts
            ]
        try:
            return await batcher.search([encodable(query) for query in queries], top_k, passed)
        except RetrieverError as error:
            _log.warning("The retriever failed: %s", error)
            raise ProblemError(502, str(error)) from error

    @app.post("/retrieve", response_model=PlainResults, responses=refuses(429, 502))
    async def retrieve(request: Request) -> Response:
        """Passages in Search-R1's format."""
        asked_for = await read(PlainRequest, request)
        top_k = default_top_k if asked_for.topk is None else asked_for.topk
        _require_few(asked_for.queries, max_queries)
        texts = [q[:MAX_CHARS] for q in asked_for.queries if isinstance(q, str)]
        found = iter(await answer(texts, top_k, None))
        results = [next(found) if isinstance(q, str) else [] for q in asked_for.queries]
        plain = [[_plain(hit, asked_for.return_scores) for hit in hits] for hits in results]
        return json_answer({"result": plain})

    @app.post("/v1/search", response_model=TypedResults, responses=refuses(429, 502))
    async def search(request: Request) -> Response:
        """Passages with their scores."""
        asked_for = await read(TypedRequest, request)
        queries, contexts = asked_for.queries, asked_for.contexts
        _require_few(queries, max_queries)
        if contexts is not None and len(contexts) != len(queries):
            words = f"{len(queries)} queries came with {len(contexts)} contexts."
            raise ProblemError(422, words)
        found = zip(queries, await answer(queries, asked_for.top_k, contexts), strict=True)
        typed = [{"query": query, "hits": [asdict(hit) for hit in hits]} for query, hits in found]
        return json_answer({"results": typed})

    @app.get("/v1/info")
    async def info() -> dict[str, Any]:
        """A description of the retriever, and the bounds of one request."""
        bounds = {"max_query_chars": MAX_CHARS, "max_top_k": MAX_TOP_K}
        return {
            "retriever": name,
            "fingerprint": retriever.fingerprint,
            "wants_contexts": wants_contexts(retriever),
            "version": paw_gym.__version__,
            "limits": {"max_queries": max_queries, **bounds},
        }

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The server's state."""
        return {"status": "ok", "version": paw_gym.__version__, "pending": batcher.pending}

    # one byte per character; a batch's queries are on average far shorter than the longest
    max_body = max(MAX_BODY, max_queries * (MAX_CHARS + 100))
    return Gate(app, token, hosts=hosts, max_body=max_body)


def _require_few(queries: Sequence[Any], most: int) -> None:
    if len(queries) > most:
        raise ProblemError(
            422,
            f"A request has at most {most:,} queries, got {len(queries):,}: send them in "
            "parts, or start the server with a larger --max-queries.",
        )


def _plain(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.id, "title": hit.title, "text": hit.text, "contents": hit.contents}
    return {"document": document, "score": hit.score} if with_score else document
