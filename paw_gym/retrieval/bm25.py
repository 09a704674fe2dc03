"""BM25 with no JVM: Lucene's scores and ranking, from arrays that are mapped into memory."""

from __future__ import annotations

import threading
from pathlib import Path

from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.base import check_top_k
from paw_gym.retrieval.bm25_index import BM25Index, Progress, build_index
from paw_gym.retrieval.bm25_scoring import BM25Scorer, Ranked, check_parameters
from paw_gym.retrieval.corpus import Corpus, CorpusRetriever, CorpusSource


class BM25Retriever(CorpusRetriever):
    """Finds passages by BM25 as Lucene and Anserini do: same terms, same scores, ties by position.

    Args:
        corpus: path of a ``.jsonl`` file, a ``Corpus``, or passages in memory.
        index: folder of a finished index (``paw index build``); ``None``: indexed now, in memory.
        k1: term saturation; Anserini's default.
        b: length normalisation; Anserini's default.
        on_error: ``raise`` or ``skip``, for malformed lines of the corpus.
        compiled: whether to use numba; ``None``: where it is installed and the corpus is large.
        progress: called as indexing goes on.

    Raises:
        CorpusError: the corpus is malformed.
        IndexMismatchError: the index is of another corpus.
        DamagedIndexError: a file of it is missing or cut off.
        ValueError: ``k1`` or ``b`` is out of range.
    """

    def __init__(
        self,
        corpus: CorpusSource,
        index: str | Path | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        on_error: str = "raise",
        compiled: bool | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        check_parameters(k1, b)
        self.corpus = Corpus.open(corpus, on_error)
        if index is None:
            self.index = build_index(self.corpus, progress=progress)
        else:
            self.index = BM25Index.load(Path(index).expanduser(), self.corpus.fingerprint)
        self._settings = {"retriever": "bm25", "corpus": self.index.corpus, "k1": k1, "b": b}
        self._options = (k1, b, compiled)
        self._lock = threading.Lock()
        self._scorer: BM25Scorer | None = None

    def rank(self, query: str, top_k: int) -> Ranked:
        """Positions [k] in the corpus and scores [k] of the best passages of one query."""
        check_top_k(top_k)
        return self._ready().rank(analyze(query), top_k)

    def _ready(self) -> BM25Scorer:
        with self._lock:  # compiling takes seconds, and only once
            if self._scorer is None:
                k1, b, compiled = self._options
                self._scorer = BM25Scorer(self.index, k1, b, compiled)
            return self._scorer

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_scorer": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
