"""A language model that plays the search engine (ZeroSearch, Sun et al. 2025).

It writes documents that help to answer the question, or, on purpose, some that do not; the share
of the latter rises over training. The model is reached through an OpenAI-compatible endpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

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
_PARALLEL = 8
"""requests at a time"""
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

    def __post_init__(self) -> None:
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1):
            raise ValueError(f"Shares of noise are 0 to 1, got {self.start} and {self.end}.")
        if self.base <= 0:
            raise ValueError(f"base is above 0, got {self.base}.")

    def noise(self, progress: float | None) -> float:
        """The share of noisy results when ``progress`` (0 to 1) of training is done.

        >>> [round(Curriculum(0.0, 0.75).noise(x), 3) for x in (0, 0.5, 1)]
        [0.0, 0.25, 0.75]
        """
        x = min(max(progress or 0.0, 0.0), 1.0)
        rise = x if self.base == 1 else (self.base**x - 1) / (self.base - 1)
        return self.start + rise * (self.end - self.start)


@RETRIEVERS.register("simulated")
class SimulatedRetriever(CheckedRetriever):
    """Asks a language model to write what a search might return.

    A result's kind follows from the query, its context and the seed, so a search that is repeated at the
    same point of training is as noisy as before. The context states that point (``SearchContext.progress``;
    this project's trainers set it); without it, training has just begun.

    Args:
        url: address of the endpoint, up to and including its version (``http://host:8000/v1``).
        model: its name there.
        curriculum: settings of ``Curriculum``.
        max_tokens: longest response for one document.
        seed: seeds the choice between useful and noisy.
        attempts: how often to ask before a search has failed.
        writer: ``model``; or ``script``, fixed sentences for tests and dry runs: a policy that trains on
            them learns to read these sentences and nothing else.

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
        temperature: float = 0.8,
        max_tokens: int = 100,
        seed: int = 0,
        timeout: float = 120.0,
        attempts: int = 4,
        backoff: float = 0.5,
        wait: Callable[[float], None] = time.sleep,
        writer: str = "model",
    ) -> None:
        if not isinstance(curriculum, Curriculum):
            curriculum = curriculum or {}
            for name in curriculum:
                require_choice("setting of the curriculum", name, asdict(Curriculum()))
            curriculum = Curriculum(**curriculum)
        self.curriculum = curriculum
        require_choice("writer", writer, WRITERS)
        self._client: JsonClient | None = None
        if writer == "model":
            if url is None or model is None:
                raise ValueError(
                    "The retriever 'simulated' needs url and model, the endpoint of a language model; "
                    "only writer='script' goes without."
                )
            self._client = JsonClient(url, token, timeout, attempts, backoff, wait)
        self.model, self.temperature, self.max_tokens = model, temperature, max_tokens
        self.seed = seed

    @property
    def fingerprint(self) -> str:
        """Hash of the writer and the settings; the text that a model samples is not part of it."""
        writer: dict[str, Any] = {"writer": "script"}
        if self._client:
            writer = {"model": self.model, "temperature": self.temperature}
        noise = {"curriculum": asdict(self.curriculum), "seed": self.seed}
        return settings_digest({"retriever": "simulated", **writer, **noise})

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        """Without a context the query counts as the question."""
        given = contexts if contexts is not None else [SearchContext(query) for query in queries]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(partial(self._hits, top_k), queries, given))

    def _hits(self, top_k: int, query: str, context: SearchContext) -> list[Hit]:
        key = json.dumps([self.seed, query, context.question, context.seed])
        uniform = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
        noisy = uniform < self.curriculum.noise(context.progress)
        write = _script if self._client is None else self._write
        documents = write(query, context, top_k, noisy)
        names = [hashlib.sha256(d.encode("utf-8", "replace")).hexdigest()[:12] for d in documents]
        named = zip(names, documents, strict=True)
        return [Hit(f"sim-{name}", d, 1 / rank) for rank, (name, d) in enumerate(named, start=1)]

    def _write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        """At most ``count`` documents of the model, best first; noisy ones are of no help."""
        known = " or ".join(context.golden_answers)
        answer = f" (the answer is: {known})" if known else ""
        prompt = NOISY.format(count=count) if noisy else USEFUL.format(count=count, answer=answer)
        prompt += _FORM.format(query=query, question=context.question)
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens * count,
        }
        assert self._client is not None
        try:
            reply = self._client.ask("POST", "/chat/completions", request, read=read_chat)
        except HttpError as error:
            raise RetrieverError(str(error)) from error
        # a thought may tell the answer; a response without numbers is one document
        parts = _DOCUMENT.split(split_thought(reply["text"])[1])
        return [p.strip() for p in (parts[1:] if len(parts) > 1 else parts) if p.strip()][:count]


def _script(query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
    """Sentences with the golden answer, or without it."""
    text = f"Many pages are about {query}. None of them says more."
    if context.golden_answers and not noisy:
        text = f"{context.question} {context.golden_answers[0]}."
    return [f"{text} Page {number}." for number in range(1, count + 1)]
