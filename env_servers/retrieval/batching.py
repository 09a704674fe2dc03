"""Many requests at once become few calls of the retriever.

Nothing waits while a thread is free; what arrives while all are busy is answered together. So a lone request
pays nothing, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from env_servers.problems import ProblemError
from paw_gym.retrieval.base import Hit, Retriever, SearchContext


@dataclass(eq=False)
class _Request:
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
        self,
        retriever: Retriever,
        max_batch: int = 64,
        threads: int = 2,
        max_pending: int = 20_000,
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
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
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
                parts.append(_Request(queries[part], top_k, some))
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

    async def _answer(self, requests: Sequence[_Request]) -> None:
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
