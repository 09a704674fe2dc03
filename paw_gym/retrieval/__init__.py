"""Finding passages: one ``Retriever`` protocol over BM25, dense vectors, a service, a language model.

``make_retriever`` chooses one by name.
"""

from __future__ import annotations

from paw_gym.internals.registry import import_modules
from paw_gym.retrieval.base import Hit, Passage, Retriever, RetrieverError, SearchContext
from paw_gym.retrieval.bm25 import BM25Retriever
from paw_gym.retrieval.corpus import Corpus, CorpusError
from paw_gym.retrieval.dense import DenseRetriever
from paw_gym.retrieval.factory import HybridRetriever, make_retriever, retriever_names
from paw_gym.retrieval.index_files import IndexMismatchError
from paw_gym.retrieval.lucene import LuceneRetriever
from paw_gym.retrieval.remote import RemoteRetriever
from paw_gym.retrieval.simulated import SimulatedRetriever

__all__ = [
    "BM25Retriever",
    "Corpus",
    "CorpusError",
    "DenseRetriever",
    "Hit",
    "HybridRetriever",
    "IndexMismatchError",
    "LuceneRetriever",
    "Passage",
    "RemoteRetriever",
    "Retriever",
    "RetrieverError",
    "SearchContext",
    "SimulatedRetriever",
    "make_retriever",
    "retriever_names",
]

import_modules(__name__)
