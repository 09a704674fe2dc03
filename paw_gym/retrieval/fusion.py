"""Several retrievers as one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.retrieval.base import (
    CheckedRetriever,
    Contexts,
    Hit,
    Retriever,
    settings_digest,
    wants_contexts,
)
from paw_gym.retrieval.corpus import Corpus, CorpusSource
from paw_gym.retrieval.factory import RETRIEVERS, make_retriever


class HybridRetriever(CheckedRetriever):
    """Adds up ``1 / (rank_constant + rank)`` over the lists of several retrievers (Cormack et al. 2009).

    Args:
        rank_constant: how little the first places stand out; 60 in the paper.
        depth: how many passages of each list count.
    """

    def __init__(
        self, parts: Sequence[Retriever], rank_constant: int = 60, depth: int = 50
    ) -> None:
        if not parts:
            raise ValueError("A hybrid needs at least one retriever.")
        if rank_constant < 0 or depth < 1:
            raise ValueError(
                f"A hybrid needs rank_constant >= 0 and depth >= 1, got {rank_constant} and {depth}."
            )
        self.parts = tuple(parts)
        self.rank_constant = rank_constant
        self.depth = depth

    @property
    def wants_contexts(self) -> bool:
        """Results depend on contexts as soon as those of one part do."""
        return any(map(wants_contexts, self.parts))

    @property
    def fingerprint(self) -> str:
        return settings_digest(
            {
                "retriever": "hybrid",
                "parts": [part.fingerprint for part in self.parts],
                "rank_constant": self.rank_constant,
                "depth": self.depth,
            }
        )

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


@RETRIEVERS.register("hybrid")
def make_hybrid(
    corpus: CorpusSource,
    parts: Sequence[str] = ("bm25", "e5"),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    rank_constant: int = 60,
    depth: int = 50,
) -> HybridRetriever:
    """A hybrid of retrievers by name over one corpus.

    Args:
        settings: further arguments of each, by its name, such as ``{"e5": {"index": "DIR"}}``.
    """
    from paw_gym.internals.naming import did_you_mean

    chosen = dict(settings or {})
    for name in chosen:
        if name not in parts:
            raise ValueError(f"The hybrid has no part {name!r}. {did_you_mean(name, parts)}")
    opened = Corpus.open(corpus)
    made = [make_retriever(name, corpus=opened, **chosen.get(name, {})) for name in parts]
    return HybridRetriever(made, rank_constant, depth)
