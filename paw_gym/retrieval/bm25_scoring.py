"""BM25 over the inverted index, to the bit as Lucene computes it.

Lucene's form of BM25 (Robertson et al. 1994, without the constant factor k1 + 1)::

    score(q, d) = sum_t  w_t * tf / (tf + k1 * (1 - b + b * |d| / avg))
    w_t = n_t * ln(1 + (N - df + 0.5) / (df + 0.5))         n_t: how often the query has the term

with passage lengths rounded to one byte and 32-bit arithmetic, both of which decide ties. Two
implementations give equal results: NumPy for small corpora, compiled loops (numba) for large ones.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from paw_gym.retrieval.bm25_index import BM25Index, decoded_lengths

COMPILED_FROM = 50_000
"""passages from which compiled loops pay for the seconds that compiling takes"""
_BLOCK = 1 << 15
"""passages whose scores are summed at a time: they stay in the processor's cache"""
_log = logging.getLogger(__name__)

Ranked = tuple[np.ndarray, np.ndarray]
"""positions [k] int64 and scores [k] float32, best first, ties by position"""


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
        if not (k1 >= 0 and 0 <= b <= 1):
            raise ValueError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}.")
        self.index = index
        average = np.float32(index.total_terms / index.size)
        ratio = decoded_lengths().astype(np.float32) / max(average, np.float32(1e-9))
        one = np.float32(1)
        denominator = np.float32(k1) * ((one - np.float32(b)) + np.float32(b) * ratio)
        with np.errstate(divide="ignore"):
            self._inverse = (one / denominator).astype(np.float32)
        if compiled is None:
            compiled = index.size >= COMPILED_FROM and find_spec("numba") is not None
        self._kernel: Kernel = _compiled_kernel() if compiled else rank_with_numpy

    def rank(self, terms: Sequence[str], top_k: int) -> Ranked:
        """The best passages for the terms of a query; passages without any of them are left out."""
        starts, ends, weights = [], [], []
        size = self.index.size
        for term, times in Counter(terms).items():
            start, end = self.index.postings(term)
            if end > start:
                found = end - start
                idf = np.float32(math.log(1 + (size - found + 0.5) / (found + 0.5)))
                starts.append(start)
                ends.append(end)
                weights.append(np.float32(times) * idf)
        if not starts:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return self._kernel(
            np.array(starts, np.int64),
            np.array(ends, np.int64),
            np.array(weights, np.float32),
            self.index.passages,
            self.index.counts,
            self.index.lengths,
            self._inverse,
            min(top_k, size),
        )


Kernel = Callable[
    [
        np.ndarray,
        np.ndarray,
        np.ndarray,
        np.ndarray,
        np.ndarray,
        np.ndarray,
        np.ndarray,
        int,
    ],
    Ranked,
]
"""(starts [t], ends [t], weights [t], passages [P], counts [P], lengths [N], inverse [256], k)"""


def rank_with_numpy(
    starts: np.ndarray,
    ends: np.ndarray,
    weights: np.ndarray,
    passages: np.ndarray,
    counts: np.ndarray,
    lengths: np.ndarray,
    inverse: np.ndarray,
    top_k: int,
) -> Ranked:
    """A ``Kernel`` in plain NumPy."""
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


@lru_cache(maxsize=1)
def _compiled_kernel() -> Kernel:
    from paw_gym.retrieval.errors import need

    numba: Any = need("numba", "retrieval", "BM25 with compiled loops")

    @numba.njit(nogil=True, fastmath=False)
    def rank(
        starts: Any,
        ends: Any,
        weights: Any,
        passages: Any,
        counts: Any,
        lengths: Any,
        inverse: Any,
        top_k: Any,
    ) -> Any:
        sums = np.zeros(min(_BLOCK, len(lengths)), np.float64)
        next_ = starts.copy()
        best = np.empty(top_k, np.int64)
        scores = np.empty(top_k, np.float32)
        held = 0
        one = np.float32(1)
        for base in range(0, len(lengths), _BLOCK):
            limit = min(base + _BLOCK, len(lengths))
            touched = False
            for t in range(len(starts)):
                i, end, weight = next_[t], ends[t], weights[t]
                while i < end and passages[i] < limit:
                    p = passages[i]
                    gain = np.float32(counts[i]) * inverse[lengths[p]]
                    sums[p - base] += weight - weight / (one + gain)
                    i += 1
                touched = touched or i > next_[t]
                next_[t] = i
            if not touched:
                continue
            for offset in range(limit - base):
                score = np.float32(sums[offset])
                sums[offset] = 0.0
                if score <= 0 or (held == top_k and score <= scores[held - 1]):
                    continue
                if held < top_k:
                    held += 1
                place = held - 1
                while place > 0 and scores[place - 1] < score:
                    scores[place], best[place] = scores[place - 1], best[place - 1]
                    place -= 1
                scores[place], best[place] = score, base + offset
        return best[:held].copy(), scores[:held].copy()

    def kernel(*arguments: Any) -> Ranked:
        ranked: Ranked = rank(*arguments)
        return ranked

    return kernel
