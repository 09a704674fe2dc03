"""Search by Lucene itself, through Anserini: what the original program uses."""

from __future__ import annotations

from paw_gym.cache import private_folder
from paw_gym.encoding import encodable
from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.shop import K1, B
from paw_gym.retrieval.lucene import index_documents, open_searcher


class LuceneSearch:
    """BM25 by Lucene. The index is built in the cache folder at first use.

    Raises:
        ImportError: Pyserini or Java is not installed; states how to install them.
    """

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
