"""A retriever on another machine: this project's server, or any that speaks Search-R1's format."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from paw_gym.internals.files import own_token
from paw_gym.internals.http import HttpError, JsonClient
from paw_gym.retrieval.base import CheckedRetriever, Contexts, Hit, RetrieverError, settings_digest
from paw_gym.retrieval.factory import RETRIEVERS


@RETRIEVERS.register("remote")
class RemoteRetriever(CheckedRetriever):
    """Asks a retrieval server.

    An address that ends in ``/retrieve`` is asked in Search-R1's format. Otherwise the server is
    asked what it is, and one that does not know ``/v1/info`` is taken for a Search-R1 server.

    Args:
        token: what the server asks for; ``None``: the token of this user's own server.
        attempts: how often to ask before a search has failed.
        backoff: seconds before the second attempt, doubled for each after it.
        batch_size: queries sent in one request.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        batch_size: int = 64,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, got {batch_size}.")
        base = url.rstrip("/")
        self._info: Mapping[str, Any] | None = {} if base.endswith("/retrieve") else None
        base = base.removesuffix("/retrieve")
        shown = partial(own_token, base) if token is None else token
        self.client = JsonClient(base, shown, timeout, attempts, backoff, wait)
        self.batch_size = batch_size

    def info(self) -> Mapping[str, Any]:
        """The server's description of itself; empty for a server in Search-R1's format."""
        if self._info is None:
            try:
                answer = self.client.ask("GET", "/v1/info")
                # a server that answers anything to every path does not know this one either
                self._info = dict(answer) if isinstance(answer, Mapping) else {}
            except HttpError as error:
                if error.status not in (404, 405):
                    raise RetrieverError(str(error)) from error
                self._info = {}
        return self._info

    @property
    def wants_contexts(self) -> bool:
        """The server's results depend on the contexts of queries (a simulated engine's do)."""
        return bool(self.info().get("wants_contexts"))

    @property
    def fingerprint(self) -> str:
        """The server's fingerprint; if it has none, a hash of its address."""
        own = self.info().get("fingerprint")
        return str(own) if own else settings_digest({"retriever": self.client.url})

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        found: list[list[Hit]] = []
        for start in range(0, len(queries), self.batch_size):
            part = slice(start, start + self.batch_size)
            found += self._ask(list(queries[part]), top_k, contexts and contexts[part])
        return found

    def _ask(self, queries: list[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        """The results of one request, in the server's format."""
        typed = bool(self.info())
        payload: dict[str, Any] = {"queries": queries, "topk": top_k, "return_scores": True}
        if typed:
            payload = {"queries": queries, "top_k": top_k}
        if contexts and self.wants_contexts:
            payload["contexts"] = [asdict(context) for context in contexts]
        try:
            answer = self.client.ask("POST", "/v1/search" if typed else "/retrieve", payload)
        except HttpError as error:
            raise RetrieverError(str(error)) from error
        try:
            results = [r["hits"] for r in answer["results"]] if typed else answer["result"]
            found = [[_hit(entry) for entry in entries[:top_k]] for entries in results]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RetrieverError(
                f"{self.client.url} answered in an unknown form ({type(error).__name__}: {error})."
            ) from error
        if len(found) != len(queries):
            raise RetrieverError(
                f"{self.client.url} answered {len(queries)} queries with {len(found)} results."
            )
        return found


def _hit(entry: Mapping[str, Any]) -> Hit:
    document = entry.get("document", entry)
    contents = document.get("contents")
    if contents is None:
        title, text = document.get("title"), document["text"]
        contents = f'"{title}"\n{text}' if title else text
    name = document.get("id")
    if name is None:
        name = hashlib.sha256(str(contents).encode("utf-8", "replace")).hexdigest()[:16]
    return Hit(str(name), str(contents), float(entry.get("score", 0.0)))
