"""The retrieval server: Search-R1's format and a typed one in one application.

Many requests at once become few calls of the retriever. Nothing waits while a thread is free; what arrives
while all are busy is answered together. So a lone request pays nothing, and under load the batches grow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Annotated, Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

import paw_gym
from env_servers.application import Many, Whole, json_answer, new_app, read, refuses
from env_servers.gate import MAX_BODY, Gate
from env_servers.problems import ProblemError
from paw_gym.internals.printable import encodable
from paw_gym.retrieval.base import Hit, Retriever, RetrieverError, SearchContext, wants_contexts

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


@dataclass(eq=False)
class _Part:
    queries: Sequence[str]
    top_k: int
    contexts: Sequence[SearchContext] | None
    answer: asyncio.Future[list[list[Hit]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def kind(self) -> tuple[int, bool]:
        """Requests of one kind can share a call."""
        return self.top_k, self.contexts is None


class Batcher:
    """Puts requests together and takes their results apart again.

    Args:
        max_batch: queries of one call (a request with more is answered in several).
    """

    def __init__(
        self, retriever: Retriever, max_batch: int = 64, threads: int = 2, max_pending: int = 20_000
    ) -> None:
        if min(max_batch, threads, max_pending) < 1:
            raise ValueError(
                "max_batch, threads and max_pending are 1 or more; got "
                f"{max_batch}, {threads}, {max_pending}."
            )
        self.retriever = retriever
        self.max_batch, self.max_pending = max_batch, max_pending
        self.pending = 0
        self._threads = threads
        self._queue: asyncio.Queue[_Part] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="retriever")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers requests inside the block; a search that still runs at its end is abandoned."""
        workers = [asyncio.create_task(self._work()) for _ in range(self._threads)]
        yield
        for worker in workers:
            worker.cancel()
        # nobody waits for its result any more, and a search that hangs must not keep the server up
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def search(
        self, queries: Sequence[str], top_k: int, contexts: Sequence[SearchContext] | None = None
    ) -> list[list[Hit]]:
        """The results of one request."""
        if self.pending + len(queries) > self.max_pending and self.pending:
            raise ProblemError(429, "Too many queries are waiting: try again.", retry_after=1)
        self.pending += len(queries)
        try:
            parts = []
            for start in range(0, len(queries), self.max_batch):
                part = slice(start, start + self.max_batch)
                some = None if contexts is None else contexts[part]
                parts.append(_Part(queries[part], top_k, some))
                self._queue.put_nowait(parts[-1])
            found = await asyncio.gather(*(request.answer for request in parts))
            return [hits for answer in found for hits in answer]
        finally:
            self.pending -= len(queries)

    async def _work(self) -> None:
        while True:
            requests = [await self._queue.get()]
            size = len(requests[0].queries)
            while size < self.max_batch and not self._queue.empty():
                requests.append(self._queue.get_nowait())
                size += len(requests[-1].queries)
            for kind in {request.kind: None for request in requests}:
                await self._answer([request for request in requests if request.kind == kind])

    async def _answer(self, requests: Sequence[_Part]) -> None:
        waiting = [request for request in requests if not request.answer.done()]
        if not waiting:
            return  # everybody hung up
        queries = [query for request in waiting for query in request.queries]
        contexts = [c for request in waiting for c in request.contexts or ()] or None
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(
                self._pool, self.retriever.search, queries, waiting[0].top_k, contexts
            )
            if len(results) != len(queries):
                raise RuntimeError(f"{len(queries)} queries got {len(results)} results.")
        except Exception as error:  # whoever asked gets it; the next batch may fare better
            for request in waiting:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        found = iter(results)
        for request in waiting:
            hits = list(islice(found, len(request.queries)))
            if not request.answer.done():
                request.answer.set_result(hits)


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
        words = f"A request has at most {most:,} queries, got {len(queries):,}: send them in parts"
        raise ProblemError(422, f"{words}, or start the server with a larger --max-queries.")


def _plain(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.id, "title": hit.title, "text": hit.text, "contents": hit.contents}
    return {"document": document, "score": hit.score} if with_score else document
