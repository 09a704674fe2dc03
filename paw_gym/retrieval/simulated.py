"""A language model that plays the search engine (ZeroSearch, Sun et al. 2025).

It writes documents that help to answer the question, or, on purpose, some that do not; the share
of the latter rises over training. The model is reached through an OpenAI-compatible endpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from paw_gym.internals.http import HttpError, JsonClient
from paw_gym.internals.naming import require_choice
from paw_gym.internals.replies import read_chat, split_thought
from paw_gym.retrieval.base import (
    CheckedRetriever,
    Contexts,
    Hit,
    RetrieverError,
    SearchContext,
    settings_digest,
)
from paw_gym.retrieval.factory import RETRIEVERS

WRITERS = ("model", "script")
USEFUL = (
    "You stand in for a web search engine. Below are a search query and the question that the person "
    "searching wants to answer{answer}. Write {count} different documents, about 30 words each, as a "
    "search for the query would return them. They must contain what is needed to answer the question, "
    "stated as plain facts. Do not mention the question or these instructions."
)
"""asks for documents that help; ``{answer}`` stands for the golden answers if they are known"""
NOISY = (
    "You stand in for a web search engine on a bad day. Below are a search query and the question that "
    "the person searching wants to answer. Write {count} different documents, about 30 words each, "
    "that look as if they matched the query and are of no help: the topic is near, the facts that the "
    "question needs are absent. Do not mention the question or these instructions."
)
"""asks for documents that do not help"""
_FORM = (
    '\n\nQuery: {query}\nQuestion: {question}\n\nForm of each document, on one line: "Doc N: text"'
)
_DOCUMENT = re.compile(r"^\W*Doc(?:ument)?\W*\d+\W*?:\s*", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Curriculum:
    """The share of noisy results over training: ``p(x) = start + (base^x - 1) / (base - 1) * (end - start)``.

    x is the share of training that is done; with ``base`` above 1 noise comes late (ZeroSearch, Eq. 1).
    """

    start: float = 0.0
    """share of noisy results at first"""
    end: float = 0.5
    """and in the end"""
    base: float = 4.0
    """how late it rises; 1: evenly"""
    searches: int = 100_000
    """searches that make up the training, if contexts do not state its ``progress``"""

    def __post_init__(self) -> None:
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1):
            raise ValueError(f"Shares of noise are 0 to 1, got {self.start} and {self.end}.")
        if self.base <= 0 or self.searches < 1:
            raise ValueError(
                f"base is above 0 and searches at least 1, got {self.base} and {self.searches}."
            )

    def noise(self, progress: float) -> float:
        """The share of noisy results when ``progress`` (0 to 1) of training is done.

        >>> [round(Curriculum(0.0, 0.75).noise(x), 3) for x in (0, 0.5, 1)]
        [0.0, 0.25, 0.75]
        """
        x = min(max(progress, 0.0), 1.0)
        rise = x if self.base == 1 else (self.base**x - 1) / (self.base - 1)
        return self.start + rise * (self.end - self.start)


class DocumentWriter(Protocol):
    """Writes what a search might return."""

    def write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        """At most ``count`` documents, best first.

        Args:
            noisy: whether they must be of no help.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """The settings that decide how it writes; JSON values, for fingerprints."""
        ...


@dataclass(frozen=True)
class EndpointWriter:
    """A language model behind an OpenAI-compatible endpoint."""

    client: JsonClient
    model: str
    """its name there"""
    tell_answers: bool = True
    """whether it may see the golden answers when it is to be useful"""
    temperature: float = 0.8
    """of its sampling"""
    max_tokens: int = 100
    """longest response for one document"""

    def write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": self._prompt(query, context, count, noisy)}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens * count,
        }
        try:
            answer = self.client.ask("POST", "/chat/completions", request, read=read_chat)
        except HttpError as error:
            raise RetrieverError(str(error)) from error
        return _documents(split_thought(answer["text"])[1], count)  # a thought may tell the answer

    def _prompt(self, query: str, context: SearchContext, count: int, noisy: bool) -> str:
        known = context.golden_answers if self.tell_answers else ()
        answer = f" (the answer is: {' or '.join(known)})" if known else ""
        head = NOISY.format(count=count) if noisy else USEFUL.format(count=count, answer=answer)
        return head + _FORM.format(query=query, question=context.question)

    def settings(self) -> dict[str, Any]:
        """See ``DocumentWriter``; the text that a model samples is not part of it."""
        kept = ("model", "tell_answers", "temperature")
        return {name: getattr(self, name) for name in kept}


def _documents(text: str, count: int) -> list[str]:
    """The documents of a response; a response without numbers is one document."""
    parts = _DOCUMENT.split(text)
    return [p.strip() for p in (parts[1:] if len(parts) > 1 else parts) if p.strip()][:count]


class ScriptWriter:
    """Fixed sentences with the golden answer, or without it: no model, for tests and dry runs.

    A policy that trains on it learns to read these sentences and nothing else.
    """

    def write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        text = f"Many pages are about {query}. None of them says more."
        if context.golden_answers and not noisy:
            text = f"{context.question} {context.golden_answers[0]}."
        return [f"{text} Page {number}." for number in range(1, count + 1)]

    def settings(self) -> dict[str, Any]:
        return {"writer": "script"}


@RETRIEVERS.register("simulated")
class SimulatedRetriever(CheckedRetriever):
    """Asks a language model to write what a search might return.

    Whether a result is noisy follows from the query, its context and the seed, so a search that is
    repeated at the same point of training is of the same kind. That point is stated by the search's
    context (``SearchContext.progress``; this project's trainers set it). Searches without
    it are counted, and their number stands for the progress of training.

    Args:
        url: address of the endpoint, up to and including its version (``http://host:8000/v1``).
        curriculum: settings of ``Curriculum``.
        tell_answers: whether the model may see the golden answers when it is to be useful.
        max_tokens: longest response for one document.
        seed: seeds the choice between useful and noisy.
        attempts: how often to ask before a search has failed.
        backoff: seconds before the second attempt, doubled for each after it.
        writer: who writes: ``model``, the one at ``url``; ``script``, fixed sentences for tests and dry
            runs, which need no model; or a ``DocumentWriter``.

    Raises:
        ValueError: an unknown writer; or a model is to write, and ``url`` or ``model`` is missing.
    """

    wants_contexts = True
    """a server must pass the contexts of queries on"""

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        token: str | None = None,
        curriculum: Mapping[str, Any] | Curriculum | None = None,
        tell_answers: bool = True,
        temperature: float = 0.8,
        max_tokens: int = 100,
        seed: int = 0,
        parallel: int = 8,
        timeout: float = 120.0,
        attempts: int = 4,
        backoff: float = 0.5,
        wait: Callable[[float], None] = time.sleep,
        writer: str | DocumentWriter = "model",
    ) -> None:
        given = curriculum if curriculum is not None else {}
        self.curriculum = given if isinstance(given, Curriculum) else Curriculum(**given)
        if isinstance(writer, str):
            require_choice("writer", writer, WRITERS)
        self.writer: DocumentWriter
        if writer == "script":
            self.writer = ScriptWriter()
        elif not isinstance(writer, str):
            self.writer = writer
        elif url is None or model is None:
            raise ValueError(
                "The retriever 'simulated' needs url and model, the endpoint of a language model; "
                "only writer='script' goes without."
            )
        else:
            client = JsonClient(url, token, timeout, attempts, backoff, wait)
            self.writer = EndpointWriter(client, model, tell_answers, temperature, max_tokens)
        self.seed, self.parallel = seed, parallel
        self.searches = 0
        """searches answered so far whose context stated no progress"""
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Hash of the writer and the settings; the text that a model samples is not part of it."""
        return settings_digest(
            {
                "retriever": "simulated",
                **self.writer.settings(),
                "curriculum": asdict(self.curriculum),
                "seed": self.seed,
            }
        )

    @property
    def noise(self) -> float:
        """The present share of noisy results, for searches that state no progress."""
        return self.curriculum.noise(self.searches / self.curriculum.searches)

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        """Without a context the query counts as the question."""
        given = contexts if contexts is not None else [SearchContext(query) for query in queries]
        counted = self.noise
        with ThreadPoolExecutor(max(1, min(self.parallel, len(queries)))) as pool:
            work = [
                pool.submit(self._write, q, c, top_k, counted)
                for q, c in zip(queries, given, strict=True)
            ]
            found = [task.result() for task in work]
        with self._lock:
            self.searches += sum(context.progress is None for context in given)
        return found

    def is_noisy(self, query: str, context: SearchContext, share: float) -> bool:
        """Says if this search gets a noisy result when that share of all searches does."""
        key = json.dumps([self.seed, query, context.question, context.seed])
        uniform = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
        return uniform < share

    def _write(self, query: str, context: SearchContext, top_k: int, counted: float) -> list[Hit]:
        progress = context.progress
        share = counted if progress is None else self.curriculum.noise(progress)
        noisy = self.is_noisy(query, context, share)
        documents = self.writer.write(query, context, top_k, noisy)
        hashed = (hashlib.sha256(d.encode("utf-8", "replace")).hexdigest() for d in documents)
        named = zip(hashed, documents, strict=True)
        return [Hit(f"sim-{h[:12]}", d, 1 / (n + 1)) for n, (h, d) in enumerate(named)]
