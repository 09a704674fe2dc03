"""BM25 with no JVM: Lucene's scores and ranking to the bit, from arrays that are mapped into memory.

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
from pathlib import Path

import numpy as np

from paw_gym.internals.files import user_path
from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.bm25_index import BM25Index, build_index, decoded_lengths
from paw_gym.retrieval.bm25_kernel import compiled_ranking
from paw_gym.retrieval.corpus import Corpus, CorpusRetriever, CorpusSource, Ranked
from paw_gym.retrieval.factory import RETRIEVERS

COMPILED_FROM = 50_000
"""passages from which compiled loops pay for the seconds that compiling takes"""
LARGEST_K1 = 1e6
"""beyond it, a term's share of a score may be 0 in single precision"""


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
