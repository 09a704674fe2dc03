"""The interface of retrievers: queries in, ranked passages out."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a corpus; ``contents`` is ``"Title"``, a line break, and the text (the wiki-18 form)."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The title without its quotation marks; empty if ``contents`` has one line only."""
        head, newline, _ = self.contents.partition("\n")
        return head.strip().strip('"') if newline else ""

    @property
    def text(self) -> str:
        """The text after the title; everything if there is none."""
        head, newline, rest = self.contents.partition("\n")
        return rest if newline else head


@dataclass(frozen=True, slots=True)
class Hit(Passage):
    """A passage that was found, with its score; higher is better within one query."""

    score: float


class RetrieverError(RuntimeError):
    """A search could not be answered now: the service is down, slow or refusing. Trying later may help."""


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The question that a query serves, for simulated search engines."""

    question: str
    golden_answers: tuple[str, ...] = ()
    seed: int = 0
    """what decides, together with the query, between a useful and a noisy result"""
    progress: float | None = None
    """share of training that is done, 0 to 1, if a trainer states it"""


Contexts = Sequence[SearchContext] | None


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages. It is safe to call from several threads, and returns the same hits for
    the same query whatever else is asked in the same call."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides what is found: corpus, model and settings."""
        ...

    def search(
        self, queries: Sequence[str], top_k: int = 3, contexts: Contexts = None
    ) -> list[list[Hit]]:
        """The best passages of each query.

        Args:
            queries: the queries; order and number are kept.
            top_k: largest number of passages per query.
            contexts: the question that each query serves; only simulated retrievers use it.

        Returns:
            One list per query, best first; ties in the order of the corpus.

        Raises:
            RetrieverError: the search could not be answered.
            TypeError: ``queries`` is one string.
            ValueError: ``top_k`` is below 1.
        """
        ...


def wants_contexts(retriever: Retriever) -> bool:
    """Says if a retriever's results depend on the contexts of its queries.

    Raises:
        RetrieverError: only its server can tell, and it does not answer.
    """
    return bool(getattr(retriever, "wants_contexts", False))


def check_top_k(top_k: int) -> None:
    """Raises ``ValueError`` unless at least one passage is asked for."""
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"top_k is how many passages to return: 1 or more, got {top_k!r}.")


class CheckedRetriever(ABC):
    """Base of the retrievers: ``search`` checks what is asked for, ``_search`` does the search."""

    def search(
        self, queries: Sequence[str], top_k: int = 3, contexts: Contexts = None
    ) -> list[list[Hit]]:
        """See ``Retriever.search``."""
        if isinstance(queries, str):  # each of its letters would be taken for a query
            raise TypeError(
                f"queries is a list of strings, got one string: write search([{queries[:40]!r}])."
            )
        check_top_k(top_k)
        return self._search(queries, top_k, contexts)

    @abstractmethod
    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        """The best passages of each query."""


def settings_digest(parts: Mapping[str, Any]) -> str:
    """SHA-256 over named settings, for fingerprints."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()
