"""The shop's search engines behind one interface: BM25 without Java, and Lucene through Anserini."""

from __future__ import annotations

from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.shop import K1, B, SearchEngine
from paw_gym.internals.files import private_folder
from paw_gym.internals.printable import encodable
from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.bm25 import BM25Scorer
from paw_gym.retrieval.lucene import index_documents, open_searcher


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


class LuceneSearch:
    """BM25 by Lucene. The index is built in the cache folder at first use."""

    name = "lucene"

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        folder = private_folder("webshop") / f"lucene-{catalogue.fingerprint[:20]}"
        if not folder.is_dir():
            documents = ((product.asin, product.search_text) for product in catalogue)
            index_documents(documents, folder, {"catalogue": catalogue.fingerprint})
        self._searcher = open_searcher(folder, K1, B)

    def search(self, query: str, limit: int) -> list[int]:
        """Places of the matching products, best first."""
        hits = self._searcher.search(encodable(query), limit)
        return [self._catalogue.number_of(hit.docid) for hit in hits]


def search_engine(name: str, catalogue: Catalogue) -> SearchEngine:
    return Bm25Search(catalogue) if name == "bm25" else LuceneSearch(catalogue)
