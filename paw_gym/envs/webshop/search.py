"""The shop's search engines behind one interface."""

from __future__ import annotations

from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.shop import K1, B, SearchEngine
from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.bm25 import BM25Scorer


class Bm25Search:
    """Lucene's BM25 without Java, over the catalogue's own index."""

    name = "bm25"

    def __init__(self, catalogue: Catalogue) -> None:
        # NumPy answers at once; compiled loops would make the first search of a process wait seconds
        self._scorer = BM25Scorer(catalogue.search_index, K1, B, compiled=False)
        self._order = catalogue.asin_order

    def search(self, query: str, limit: int) -> list[int]:
        """Places of the matching products, best first, equal ones by asin."""
        places, _ = self._scorer.rank(analyze(query), limit)
        return [int(place) for place in self._order[places]]


def search_engine(name: str, catalogue: Catalogue) -> SearchEngine:
    """The engine of a name.

    Raises:
        ImportError: its packages are not installed; states how to install them.
    """
    if name == "bm25":
        return Bm25Search(catalogue)
    from paw_gym.envs.webshop.lucene import LuceneSearch

    return LuceneSearch(catalogue)
