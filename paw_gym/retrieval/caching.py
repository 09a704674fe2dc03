"""Remembering searches: groups of episodes ask the same questions again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from paw_gym.retrieval.base import (
    Hit,
    Retriever,
    SearchContext,
    check_queries,
    wants_contexts,
)

_Key = tuple[str, int, SearchContext | None]


class CachedRetriever:
    """Keeps the results of the latest searches; failures are not kept."""

    def __init__(self, inner: Retriever, size: int = 10_000) -> None:
        if size < 1:
            raise ValueError(f"A cache keeps at least one result, got size={size}.")
        self.inner = inner
        self.size = size
        self._kept: OrderedDict[_Key, tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def wants_contexts(self) -> bool:
        """That of the retriever inside, which answers what is not remembered."""
        return wants_contexts(self.inner)

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 3,
        contexts: Sequence[SearchContext] | None = None,
    ) -> list[list[Hit]]:
        """See ``Retriever.search``; only what is not remembered is asked, each query once."""
        check_queries(queries)
        given = contexts if contexts is not None else [None] * len(queries)
        # asked now and not before: a remote one has to be reached for it
        by_context = contexts is not None and self.wants_contexts
        keys = [
            (query, top_k, context if by_context else None)
            for query, context in zip(queries, given, strict=True)
        ]
        found = self._look_up(keys)
        missing = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        if missing:
            places = sorted(missing.values())
            answers = self.inner.search(
                [queries[i] for i in places],
                top_k,
                None if contexts is None else [contexts[i] for i in places],
            )
            fresh = {keys[i]: tuple(a) for i, a in zip(places, answers, strict=True)}
            self._keep(fresh)
            found.update(fresh)
        return [list(found[key]) for key in keys]

    def _look_up(self, keys: Sequence[_Key]) -> dict[_Key, tuple[Hit, ...]]:
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        return found

    def _keep(self, fresh: dict[_Key, tuple[Hit, ...]]) -> None:
        with self._lock:
            self._kept.update(fresh)
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_kept": OrderedDict()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
