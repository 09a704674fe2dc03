from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.retrieval import (
    BM25Retriever,
    CachedRetriever,
    Hit,
    HybridRetriever,
    RetrieverError,
    SearchContext,
    make_retriever,
)


class Listed:
    """Gives the same list whatever is asked."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        self.fingerprint = "listed " + " ".join(ids)
        self.asked: list[str] = []
        self.broken = False

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 3,
        contexts: Sequence[SearchContext] | None = None,
    ) -> list[list[Hit]]:
        if self.broken:
            raise RetrieverError("gone")
        self.asked += queries
        return [
            [Hit(i, f"{q}: {i}", 9.0 - n) for n, i in enumerate(self.ids[:top_k])] for q in queries
        ]


IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@given(st.lists(IDS, min_size=1, max_size=3), st.integers(1, 6), st.sampled_from([0, 1, 60]))
def test_fusion_is_the_sum_of_reciprocal_ranks(
    lists: list[list[str]], top_k: int, constant: int
) -> None:
    hybrid = HybridRetriever([Listed(ids) for ids in lists], rank_constant=constant)
    sums = {
        i: sum(1 / (constant + ids.index(i) + 1) for ids in lists if i in ids)
        for i in {i for ids in lists for i in ids}
    }
    hits = hybrid.search(["q", "r"], top_k)[1]
    assert [hit.score for hit in hits] == pytest.approx(sorted(sums.values(), reverse=True)[:top_k])
    assert all(hit.score == pytest.approx(sums[hit.id]) for hit in hits)
    assert all(hit.contents == f"r: {hit.id}" for hit in hits)


def test_only_the_first_places_of_each_list_count() -> None:
    parts = [Listed(["a", "b", "c"]), Listed(["c", "b", "a"])]
    assert {h.id for h in HybridRetriever(parts, depth=1).search(["q"], 1)[0]} <= {"a", "c"}
    with pytest.raises(ValueError, match="at least one"):
        HybridRetriever([])
    with pytest.raises(ValueError, match="depth"):
        HybridRetriever(parts, depth=0)
    other = HybridRetriever(parts, rank_constant=1)
    assert other.fingerprint != HybridRetriever(parts).fingerprint


def test_a_hybrid_by_name(small_corpus: Path) -> None:
    hybrid = make_retriever(
        "hybrid", corpus=small_corpus, parts=["bm25", "bm25"], settings={"bm25": {"k1": 1.2}}
    )
    assert isinstance(hybrid, HybridRetriever)
    assert hybrid.search(["river Sel"], 1)[0][0].id == "b"
    with pytest.raises(ValueError, match="no part 'e6'. Valid: 'bm25', 'e5'"):
        make_retriever("hybrid", corpus=small_corpus, settings={"e6": {}})


def test_the_cache_asks_each_query_once() -> None:
    inner = Listed("abc")
    cached = CachedRetriever(inner, size=3)
    first = cached.search(["x", "y", "x"], 2)
    assert inner.asked == ["x", "y"] and first[0] == first[2] != first[1]
    assert cached.search(["y", "x"], 2) == [first[1], first[0]]
    assert inner.asked == ["x", "y"]
    assert len(cached.search(["x"], 3)[0]) == 3  # another top_k is another search
    cached.search(["z"], 2)
    cached.search(["y"], 2)
    assert inner.asked == ["x", "y", "x", "z", "y"]  # y had to make room
    first[0].clear()
    assert cached.search(["x"], 3)[0]
    assert cached.fingerprint == inner.fingerprint


def test_failures_are_not_remembered() -> None:
    inner = Listed("abc")
    cached = CachedRetriever(inner)
    inner.broken = True
    with pytest.raises(RetrieverError):
        cached.search(["x"])
    inner.broken = False
    assert len(cached.search(["x"])[0]) == 3


def test_a_cache_by_name_and_its_copies(small_corpus: Path) -> None:
    cached = make_retriever("bm25", corpus=small_corpus, cache=5)
    assert isinstance(cached, CachedRetriever) and isinstance(cached.inner, BM25Retriever)
    copy = pickle.loads(pickle.dumps(cached))
    assert copy.search(["river"]) == cached.search(["river"])
    with pytest.raises(ValueError, match="at least one"):
        CachedRetriever(cached.inner, size=0)


def test_a_cache_follows_the_contexts_that_the_retriever_inside_wants() -> None:
    script = make_retriever("simulated", writer="script")
    for cached in (CachedRetriever(script), CachedRetriever(HybridRetriever([script]))):
        assert cached.wants_contexts
        for question, answer in (("Who made the bell?", "Ann Lee"), ("Where is it?", "Rome")):
            found = cached.search(["bell"], 1, [SearchContext(question, (answer,))])
            assert answer in found[0][0].contents
    inner = Listed("abc")
    plain = CachedRetriever(inner)
    plain.search(["x", "x"], 1, [SearchContext("one?", ("a",)), SearchContext("two?", ("b",))])
    assert inner.asked == ["x"] and not plain.wants_contexts
