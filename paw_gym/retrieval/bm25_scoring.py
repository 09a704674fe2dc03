"""BM25 over the inverted index, to the bit as Lucene computes it.

Lucene's form of BM25 (Robertson et al. 1994, without the constant factor k1 + 1)::

    score(q, d) = sum_t  w_t * tf / (tf + k1 * (1 - b + b * |d| / avg))
    w_t = n_t * ln(1 + (N - df + 0.5) / (df + 0.5))         n_t: how often the query has the term

with passage lengths rounded to one byte and 32-bit arithmetic, both of which decide ties. Two
implementations give equal results: NumPy for small corpora, compiled loops (numba) for large ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from paw_gym.retrieval.bm25_index import BM25Index, decoded_lengths

COMPILED_FROM = 50_000
"""passages from which compiled loops pay for the seconds that compiling takes"""

Ranked = tuple[np.ndarray, np.ndarray]
"""positions [k] int64 and scores [k] float32, best first, ties by position"""


def check_parameters(k1: float, b: float) -> None:
    """Raises ``ValueError`` for parameters that BM25 has no meaning for."""
    if not (k1 >= 0 and 0 <= b <= 1):
        raise ValueError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}.")


class BM25Scorer:
    """Ranks the passages of an index.

    Args:
        index: the postings.
        k1: how soon repeated terms stop counting.
        b: how much long passages are discounted, 0 to 1.
        compiled: whether to use numba; ``None``: where it is installed and the index is large.
    """

    def __init__(
        self, index: BM25Index, k1: float = 0.9, b: float = 0.4, compiled: bool | None = None
    ) -> None:
        check_parameters(k1, b)
        self.index = index
        average = np.float32(index.total_terms / index.size)
        ratio = decoded_lengths().astype(np.float32) / max(average, np.float32(1e-9))
        one = np.float32(1)
        denominator = np.float32(k1) * ((one - np.float32(b)) + np.float32(b) * ratio)
        with np.errstate(divide="ignore"):
            self._inverse = (one / denominator).astype(np.float32)
        if compiled is None:
            compiled = index.size >= COMPILED_FROM and find_spec("numba") is not None
        self._ranking: Ranking
        if compiled:
            from paw_gym.retrieval.bm25_kernel import CompiledRanking

            self._ranking = CompiledRanking(index, self._inverse)
        else:
            self._ranking = NumpyRanking(index, self._inverse)

    def rank(self, terms: Sequence[str], top_k: int) -> Ranked:
        """The best passages for the terms of a query; passages without any of them are left out."""
        found = []
        size = self.index.size
        for term, times in Counter(terms).items():
            place = self.index.place(term)
            if place is not None:
                start, end = self.index.starts[place : place + 2]
                idf = np.float32(math.log(1 + (size - (end - start) + 0.5) / (end - start + 0.5)))
                found.append((np.float32(times) * idf, place, start, end))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        found.sort(key=lambda entry: -entry[0])  # one order of summing, whatever does it
        weights, places, starts, ends = zip(*found, strict=True)
        return self._ranking(
            np.array(places, np.int64),
            np.array(starts, np.int64),
            np.array(ends, np.int64),
            np.array(weights, np.float32),
            min(top_k, size),
        )


class Ranking(Protocol):
    """Adds up and sorts."""

    def __call__(
        self,
        places: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        weights: np.ndarray,
        top_k: int,
    ) -> Ranked:
        """The best passages.

        Args:
            places: [t] int64, numbers of the query's terms in the index; heaviest terms first.
            starts: [t] int64, where their postings begin,
            ends: [t] int64, and end.
            weights: [t] float32.
            top_k: how many passages, at most.
        """
        ...


class NumpyRanking:
    """Ranks in plain NumPy, with one sum for each passage.

    Args:
        index: the postings.
        inverse: [256] float32, one over what tf is compared with, by code of length.
    """

    def __init__(self, index: BM25Index, inverse: np.ndarray) -> None:
        self._index, self._inverse = index, inverse

    def __call__(
        self,
        places: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        weights: np.ndarray,
        top_k: int,
    ) -> Ranked:
        """See ``Ranking``."""
        passages, counts, lengths = self._index.passages, self._index.counts, self._index.lengths
        inverse = self._inverse
        sums = np.zeros(len(lengths), np.float64)
        one = np.float32(1)
        for start, end, weight in zip(starts, ends, weights, strict=True):
            where = passages[start:end]
            gain = counts[start:end].astype(np.float32) * inverse[lengths[where]]
            sums[where] += weight - weight / (one + gain)
        scores = sums.astype(np.float32)
        found = np.flatnonzero(scores > 0)
        if len(found) > top_k:
            least = np.partition(scores[found], len(found) - top_k)[len(found) - top_k]
            better = found[scores[found] > least]
            tied = found[scores[found] == least][: top_k - len(better)]
            found = np.concatenate([better, tied])
        found = found[np.lexsort((found, -scores[found]))]
        return found, scores[found]
