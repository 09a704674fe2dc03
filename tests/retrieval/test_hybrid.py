from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.retrieval import Hit, HybridRetriever, make_retriever


def listed(ids: Sequence[str]) -> Any:
    """A retriever that gives the same list whatever is asked."""

    def search(queries: Sequence[str], top_k: int = 3, contexts: Any = None) -> list[list[Hit]]:
        return [[Hit(i, f"{q}: {i}", 9.0 - n) for n, i in enumerate(ids[:top_k])] for q in queries]

    return SimpleNamespace(search=search, fingerprint=f"listed {ids}")


IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@given(st.lists(IDS, min_size=1, max_size=3), st.integers(1, 6), st.sampled_from([0, 1, 60]))
def test_fusion_is_the_sum_of_reciprocal_ranks(
    lists: list[list[str]], top_k: int, constant: int
) -> None:
    hybrid = HybridRetriever([listed(ids) for ids in lists], rank_constant=constant)
    sums = {
        i: sum(1 / (constant + ids.index(i) + 1) for ids in lists if i in ids)
        for i in {i for ids in lists for i in ids}
    }
    hits = hybrid.search(["q", "r"], top_k)[1]
    assert [hit.score for hit in hits] == pytest.approx(sorted(sums.values(), reverse=True)[:top_k])
    assert all(hit.score == pytest.approx(sums[hit.id]) for hit in hits)
    assert all(hit.contents == f"r: {hit.id}" for hit in hits)


def test_only_the_first_places_of_each_list_count() -> None:
    parts = [listed(["a", "b", "c"]), listed(["c", "b", "a"])]
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
