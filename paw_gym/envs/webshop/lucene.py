"""Search by Lucene itself, through Anserini: what the original program uses."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from paw_gym.cache import cache_dir
from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.shop import K1, B
from paw_gym.retrieval.lucene import java_class


class LuceneSearch:
    """BM25 by Lucene. The index is built in the cache folder at first use.

    Raises:
        ImportError: Pyserini or Java is not installed; says how to install them.
    """

    name = "lucene"

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        searcher = java_class("io.anserini.search.SimpleSearcher")
        folder = cache_dir() / "webshop" / f"lucene-{catalogue.fingerprint[:20]}"
        if not folder.is_dir():
            _build(catalogue, folder)
        self._searcher = searcher(str(folder))
        self._searcher.set_bm25(K1, B)

    def search(self, query: str, limit: int) -> list[int]:
        """Places of the matching products, best first."""
        hits = self._searcher.search(query, limit)
        return [self._catalogue.number_of(hit.docid) for hit in hits]


def _build(catalogue: Catalogue, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        documents = work / "documents"
        documents.mkdir()
        with (documents / "products.jsonl").open("w", encoding="utf-8") as file:
            for product in catalogue:
                line = {"id": product.asin, "contents": product.search_text}
                file.write(json.dumps(line) + "\n")
        options = {
            "collection": "JsonCollection",
            "generator": "DefaultLuceneDocumentGenerator",
            "threads": "1",
            "input": str(documents),
            "index": str(work / "index"),
        }
        arguments = [text for name, value in options.items() for text in (f"-{name}", value)]
        java_class("io.anserini.index.IndexCollection").main([*arguments, "-quiet"])
        try:
            os.rename(work / "index", folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
