"""Finding passages: one ``Retriever`` protocol over BM25, dense vectors, a service, a language model.

``make_retriever`` chooses one by name; names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Hit": "base",
    "Passage": "base",
    "Retriever": "base",
    "RetrieverError": "base",
    "SearchContext": "base",
    "Corpus": "corpus",
    "CorpusError": "corpus",
    "IndexMismatchError": "errors",
    "BM25Retriever": "bm25",
    "CachedRetriever": "caching",
    "DenseRetriever": "dense",
    "HybridRetriever": "fusion",
    "LuceneRetriever": "lucene",
    "RemoteRetriever": "remote",
    "SimulatedRetriever": "simulated",
    "make_retriever": "factory",
    "retriever_names": "factory",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from paw_gym.retrieval.base import Hit, Passage, Retriever, RetrieverError, SearchContext
    from paw_gym.retrieval.bm25 import BM25Retriever
    from paw_gym.retrieval.caching import CachedRetriever
    from paw_gym.retrieval.corpus import Corpus, CorpusError
    from paw_gym.retrieval.dense import DenseRetriever
    from paw_gym.retrieval.errors import IndexMismatchError
    from paw_gym.retrieval.factory import make_retriever, retriever_names
    from paw_gym.retrieval.fusion import HybridRetriever
    from paw_gym.retrieval.lucene import LuceneRetriever
    from paw_gym.retrieval.remote import RemoteRetriever
    from paw_gym.retrieval.simulated import SimulatedRetriever


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
