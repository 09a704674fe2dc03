"""BM25 with no JVM: Lucene's scores and ranking to the bit, from arrays that are mapped into memory.

Lucene's form of BM25 (Robertson et al. 1994, without the constant factor k1 + 1)::

    score(q, d) = sum_t  w_t * tf / (tf + k1 * (1 - b + b * |d| / avg))
    w_t = n_t * ln(1 + (N - df + 0.5) / (df + 0.5))         n_t: how often the query has the term

with passage lengths rounded to one byte and 32-bit arithmetic, both of which decide ties. Two
implementations give equal results: NumPy for small corpora, compiled loops (numba) for large ones.

The loops do not read what cannot change the best k. Passages are scored block by block. As soon as k are
held, a term no longer brings passages in if its greatest possible share, together with those of all lighter
terms, cannot lift a passage above the k-th: it is only looked up in those that heavier terms brought in
(MaxScore; Turtle and Flood 1995). Frequent terms are light, so most postings are skipped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.constructors import need
from paw_gym.internals.files import user_path
from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.bm25_index import BM25Index, build_index, decoded_lengths
from paw_gym.retrieval.corpus import Corpus, CorpusRetriever, CorpusSource, Ranked
from paw_gym.retrieval.factory import RETRIEVERS

COMPILED_FROM = 50_000
"""passages from which compiled loops pay for the seconds that compiling takes"""
LARGEST_K1 = 1e6
"""beyond it, a term's share of a score may be 0 in single precision"""

_BLOCK = 1 << 15
"""passages whose scores are summed at a time: they stay in the processor's cache"""
_SLACK = 1 + 1e-12
"""makes up for the order in which a bound is summed"""
_SPARSE = 8
"""postings per passage in question from which looking them up is quicker than walking past them"""


@RETRIEVERS.register("bm25")
class BM25Retriever(CorpusRetriever):
    """Finds passages by BM25 as Lucene and Anserini do: same terms, same scores, ties by position.

    Args:
        corpus: path of a ``.jsonl`` file, a ``Corpus``, or passages in memory.
        index: folder of a finished index (``paw index build``); ``None``: indexed now, in memory.
        k1: term saturation; Anserini's default.
        b: length normalisation; Anserini's default.
        compiled: use numba; ``None``: if it is installed and the corpus is large.
    """

    def __init__(
        self,
        corpus: CorpusSource,
        index: str | Path | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        compiled: bool | None = None,
    ) -> None:
        if not (0 <= k1 <= LARGEST_K1 and 0 <= b <= 1):
            raise ValueError(
                f"BM25 needs 0 <= k1 <= {LARGEST_K1:g} and 0 <= b <= 1, got k1={k1}, b={b}."
            )
        self.corpus = Corpus.open(corpus)
        if index is None:
            self.index = build_index(self.corpus)
        else:
            self.index = BM25Index.load(user_path(index), self.corpus.fingerprint)
        self._settings = {"retriever": "bm25", "corpus": self.index.corpus, "k1": k1, "b": b}
        self._scorer = BM25Scorer(self.index, k1, b, compiled)

    def rank(self, query: str, top_k: int) -> Ranked:
        """The best passages of one query."""
        return self._scorer.rank(analyze(query), top_k)


class BM25Scorer:
    """Ranks the passages of an index."""

    def __init__(
        self, index: BM25Index, k1: float = 0.9, b: float = 0.4, compiled: bool | None = None
    ) -> None:
        self.index = index
        average = np.float32(index.total_terms / index.size)
        ratio = decoded_lengths().astype(np.float32) / max(average, np.float32(1e-9))
        one = np.float32(1)
        denominator = np.float32(k1) * ((one - np.float32(b)) + np.float32(b) * ratio)
        with np.errstate(divide="ignore"):
            self._inverse = (one / denominator).astype(np.float32)
        if compiled is None:
            compiled = index.size >= COMPILED_FROM and find_spec("numba") is not None
        self._compiled = compiled
        if compiled:
            compiled_ranking()  # a missing package is reported now
        self._gains = np.zeros(len(index.terms) if compiled else 0, np.float32)

    def rank(self, terms: Sequence[str], top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best passages for the terms of a query; passages without any of them are left out.

        Returns:
            Positions [k] int64 and scores [k] float32, best first, ties by position.
        """
        index, found = self.index, []
        for term, times in Counter(terms).items():
            place = index.place(term)
            if place is not None:
                start, end = index.starts[place : place + 2]
                idf = math.log(1 + (index.size - (end - start) + 0.5) / (end - start + 0.5))
                found.append((np.float32(times) * np.float32(idf), place, start, end))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        found.sort(key=lambda entry: -entry[0])  # the same order of summing in both implementations
        weights, *integers = zip(*found, strict=True)
        numbers = (np.array(some, np.int64) for some in integers)
        query: tuple[np.ndarray, ...] = (np.array(weights, np.float32), *numbers)
        top_k = min(top_k, index.size)
        if not self._compiled:
            return self._rank(query, top_k)
        arrays = (index.passages, index.counts, index.lengths)
        ranked: tuple[np.ndarray, np.ndarray] = compiled_ranking()(
            query, arrays, self._inverse, self._gains, top_k
        )
        return ranked

    def _rank(self, query: Sequence[np.ndarray], top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Ranks in plain NumPy, with one sum for each passage."""
        weights, _, starts, ends = query
        passages, counts, lengths = self.index.passages, self.index.counts, self.index.lengths
        sums = np.zeros(len(lengths), np.float64)
        one = np.float32(1)
        for start, end, weight in zip(starts, ends, weights, strict=True):
            where = passages[start:end]
            gain = counts[start:end].astype(np.float32) * self._inverse[lengths[where]]
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


# --- compiled loops ---


@lru_cache(maxsize=1)
def compiled_ranking() -> Any:
    """A function that ranks the passages of an index; it returns what ``BM25Scorer.rank`` does.

    Its arguments are the query's weights, places, starts and ends [t], heaviest terms first; the index's
    passages, counts and lengths; [256] float32, 1 / (k1 * (1 - b + b * |d| / avg)) by code of length; [V]
    float32, what it remembers of each term (its largest tf * inverse; 0: not looked at yet); and k.
    """
    numba: Any = need("numba", "retrieval", "BM25 with compiled loops")

    @numba.njit(nogil=True, fastmath=False)
    def first_from(passages: Any, low: Any, end: Any, wanted: Any) -> Any:
        """The first posting at or after ``low`` whose passage is ``wanted`` or a later one."""
        step = 1
        high = low
        while high < end and passages[high] < wanted:
            low = high + 1
            high += step
            step *= 2
        high = min(high, end)
        while low < high:
            middle = (low + high) // 2
            if passages[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    @numba.njit(nogil=True, fastmath=False)
    def rank(query: Any, index: Any, inverse: Any, gains: Any, top_k: Any) -> Any:
        weights, places, starts, ends = query
        passages, counts, lengths = index
        terms, size, one = len(starts), len(lengths), np.float32(1)
        sums = np.zeros(min(_BLOCK, size), np.float64)
        found = np.empty(len(sums), np.int64)  # offsets in the block that may still get in
        next_ = starts.copy()
        remaining = np.zeros(terms + 1, np.float64)  # the most that a term and all lighter ones add
        for t in range(terms - 1, -1, -1):
            greatest = gains[places[t]]
            if greatest == 0:  # two threads may get here: they find the same
                for i in range(starts[t], ends[t]):
                    greatest = max(greatest, np.float32(counts[i]) * inverse[lengths[passages[i]]])
                gains[places[t]] = greatest
            remaining[t] = remaining[t + 1] + (weights[t] - weights[t] / (one + greatest))
        best = np.empty(top_k, np.int64)
        scores = np.empty(top_k, np.float32)
        held, leading = 0, terms  # leading: terms that still bring passages in
        for base in range(0, size, _BLOCK):
            limit = min(base + _BLOCK, size)
            least = scores[top_k - 1] if held == top_k else np.float32(-1)
            # a later passage must score more than the last that is held: ties go to the earlier one
            while leading > 0 and np.float32(remaining[leading - 1] * _SLACK) <= least:
                leading -= 1
            if leading == 0:
                break
            count = 0
            # heavy terms bring passages in: `found` lists those with a sum, to be set back to 0 below
            for t in range(leading):
                i, end, weight = next_[t], ends[t], weights[t]
                while i < end and passages[i] < limit:
                    p = passages[i]
                    offset = p - base
                    if sums[offset] == 0.0:
                        found[count] = offset
                        count += 1
                    gain = np.float32(counts[i]) * inverse[lengths[p]]
                    sums[offset] += weight - weight / (one + gain)
                    i += 1
                next_[t] = i
            # light terms only add to passages that can still get in with all that is left to add
            for t in range(leading, terms):
                kept = 0
                for c in range(count):
                    offset = found[c]
                    if np.float32((sums[offset] + remaining[t]) * _SLACK) > least:
                        found[kept] = offset
                        kept += 1
                    else:
                        sums[offset] = 0.0
                count = kept
                if count == 0:
                    break
                end, weight = ends[t], weights[t]
                i = first_from(passages, next_[t], end, base)
                usual = (end - starts[t]) * (limit - base) // size
                if count * _SPARSE < usual:
                    for c in range(count):
                        p = base + found[c]
                        j = first_from(passages, i, end, p)
                        if j < end and passages[j] == p:
                            gain = np.float32(counts[j]) * inverse[lengths[p]]
                            sums[found[c]] += weight - weight / (one + gain)
                else:
                    while i < end and passages[i] < limit:
                        p = passages[i]
                        if sums[p - base] > 0.0:
                            gain = np.float32(counts[i]) * inverse[lengths[p]]
                            sums[p - base] += weight - weight / (one + gain)
                        i += 1
                next_[t] = i
            # insertion into the k best: few passages come this far
            for c in range(count):
                position, score = base + found[c], np.float32(sums[found[c]])
                sums[found[c]] = 0.0
                if score <= 0:
                    continue
                if held == top_k and (
                    score < scores[held - 1]
                    or (score == scores[held - 1] and position > best[held - 1])
                ):
                    continue
                if held < top_k:
                    held += 1
                place = held - 1
                while place > 0 and (
                    scores[place - 1] < score
                    or (scores[place - 1] == score and best[place - 1] > position)
                ):
                    scores[place], best[place] = scores[place - 1], best[place - 1]
                    place -= 1
                scores[place], best[place] = score, position
        return best[:held].copy(), scores[:held].copy()

    return rank
