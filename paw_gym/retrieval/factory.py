"""Retrievers by name, and several of them as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paw_gym.internals.constructors import parameters_in
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.registry import Registry
from paw_gym.retrieval.base import (
    CheckedRetriever,
    Contexts,
    Hit,
    Retriever,
    settings_digest,
    wants_contexts,
)
from paw_gym.retrieval.corpus import Corpus, CorpusSource

RETRIEVERS: Registry[Callable[..., Retriever]] = Registry("retriever", "paw_gym.retrievers")
"""what makes a retriever, by name: a class or a function; add yours with ``RETRIEVERS.register``"""

_ADDRESS = ("http://", "https://")


def retriever_names() -> list[str]:
    """The names that ``make_retriever`` knows, apart from addresses."""
    return RETRIEVERS.names()


def require_retriever(name: str) -> None:
    """Raises ``ValueError`` for a name that is neither a retriever's nor an address; names the nearest."""
    if name not in RETRIEVERS and not name.startswith(_ADDRESS):
        raise ValueError(
            f"There is no retriever {name!r}. {did_you_mean(name, retriever_names())} "
            "The address of a retrieval server begins with http:// or https://."
        )


def needs_corpus(name: str) -> bool:
    """Says if a retriever searches a corpus of its own; a server and a language model bring theirs."""
    return name in RETRIEVERS and "corpus" in parameters_in(RETRIEVERS[name])


def make_retriever(name: str | Retriever, **settings: Any) -> Retriever:
    """A retriever by name.

    Args:
        name: one of ``retriever_names()``, the address of a retrieval server (``http://...``), or a
            retriever, which is returned as it is.
        settings: its arguments, such as ``corpus`` (see the class of that name).

    Raises:
        ValueError: an unknown name or setting; names the nearest.
    """
    if not isinstance(name, str):
        if settings:
            raise ValueError(
                f"A retriever was given as an object, so {sorted(settings)} go nowhere."
            )
        return name
    require_retriever(name)
    if name.startswith(_ADDRESS):
        name, settings = "remote", {"url": name, **settings}
    make = RETRIEVERS[name]
    parameters = parameters_in(make)
    for key in settings:
        if key not in parameters:
            raise ValueError(
                f"The retriever {name!r} has no setting {key!r}. {did_you_mean(key, parameters)}"
            )
    required = [k for k, p in parameters.items() if p.default is inspect.Parameter.empty]
    missing = [key for key in required if key not in settings]
    if missing:
        raise ValueError(f"The retriever {name!r} needs {' and '.join(missing)}.")
    return make(**settings)


@RETRIEVERS.register("hybrid")
class HybridRetriever(CheckedRetriever):
    """Adds up ``1 / (rank_constant + rank)`` over the lists of several retrievers (Cormack et al. 2009).

    Args:
        parts: retrievers, or names of some.
        rank_constant: how little the first places stand out; 60 in the paper.
        depth: how many passages of each list count.
        corpus: that of the parts by name.
        settings: their further arguments, by name, such as ``{"e5": {"index": "DIR"}}``.
    """

    def __init__(
        self,
        parts: Sequence[str | Retriever] = ("bm25", "e5"),
        rank_constant: int = 60,
        depth: int = 50,
        corpus: CorpusSource | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if not parts:
            raise ValueError("A hybrid needs at least one retriever.")
        if rank_constant < 0 or depth < 1:
            raise ValueError(
                f"A hybrid needs rank_constant >= 0 and depth >= 1, got {rank_constant} and {depth}."
            )
        chosen = dict(settings or {})
        for name in chosen:
            if name not in parts:
                names = [part for part in parts if isinstance(part, str)]
                raise ValueError(f"The hybrid has no part {name!r}. {did_you_mean(name, names)}")
        shared = {} if corpus is None else {"corpus": Corpus.open(corpus)}
        self.parts = [
            make_retriever(part, **shared, **chosen.get(part, {}))
            if isinstance(part, str)
            else part
            for part in parts
        ]
        self.rank_constant, self.depth = rank_constant, depth

    @property
    def wants_contexts(self) -> bool:
        """Results depend on contexts as soon as those of one part do."""
        return any(map(wants_contexts, self.parts))

    @property
    def fingerprint(self) -> str:
        own = {"rank_constant": self.rank_constant, "depth": self.depth}
        parts = [part.fingerprint for part in self.parts]
        return settings_digest({"retriever": "hybrid", "parts": parts, **own})

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        """Scores are the sums, ties in the order of the first part."""
        depth = max(self.depth, top_k)
        lists = [part.search(queries, depth, contexts) for part in self.parts]
        return [self._fuse(ranked, top_k) for ranked in zip(*lists, strict=True)]

    def _fuse(self, ranked: Sequence[Sequence[Hit]], top_k: int) -> list[Hit]:
        sums: dict[str, float] = {}
        hits: dict[str, Hit] = {}
        for hits_of_part in ranked:
            for rank, hit in enumerate(hits_of_part, start=1):
                sums[hit.id] = sums.get(hit.id, 0.0) + 1 / (self.rank_constant + rank)
                hits.setdefault(hit.id, hit)
        best = sorted(sums, key=lambda i: -sums[i])[:top_k]
        return [Hit(i, hits[i].contents, sums[i]) for i in best]
