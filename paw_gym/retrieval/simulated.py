"""A language model that plays the search engine (ZeroSearch, Sun et al. 2025).

It writes documents that help to answer the question, or, on purpose, such as do not; the share of
the latter rises over training. The model is reached through an OpenAI-compatible endpoint.
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
from typing import Any

from paw_gym.retrieval.base import Hit, RetrieverError, SearchContext, check_top_k, settings_digest
from paw_gym.retrieval.transport import JsonClient

USEFUL = (
    "You stand in for a web search engine. Below are a search query and the question that the person "
    "searching wants to answer{answer}. Write {count} different documents, about 30 words each, as a "
    "search for the query would return them. They must contain what is needed to answer the question, "
    "stated as plain facts. Do not mention the question or these instructions."
)
"""asks for documents that help; ``{answer}`` tells the golden answers where they are known"""
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
    """searches that make up the training, where nobody sets ``progress``"""

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


class SimulatedRetriever:
    """Asks a language model to write what a search might return.

    Whether a result is noisy follows from the query, its context and the seed, so a search that is
    repeated at the same point of training is of the same kind.

    Args:
        url: address of the endpoint, up to and including its version (``http://host:8000/v1``).
        model: name of the model there.
        token: the endpoint's key.
        curriculum: settings of ``Curriculum``.
        tell_answers: whether the model may see the golden answers when it is to be useful.
        temperature: of its sampling.
        max_tokens: longest response for one document.
        seed: of the choice between useful and noisy.
        parallel: requests at a time.
        timeout: seconds to wait for a response.
        attempts: how often to ask before a search has failed.
        backoff: seconds before the second attempt, doubled for each after it.
        wait: sleeps between attempts.
    """

    wants_contexts = True
    """a server must pass the contexts of queries on"""

    def __init__(
        self,
        url: str,
        model: str,
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
    ) -> None:
        self.client = JsonClient(url, token, timeout, attempts, backoff, wait)
        given = curriculum if curriculum is not None else {}
        self.curriculum = given if isinstance(given, Curriculum) else Curriculum(**given)
        self.model, self.tell_answers = model, tell_answers
        self.temperature, self.max_tokens = temperature, max_tokens
        self.seed, self.parallel = seed, parallel
        self.progress: float | None = None
        """share of training that is done; ``None``: told by the number of searches"""
        self.searches = 0
        """searches answered so far"""
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Hash of the model and the settings; what a model writes at a temperature is not in it."""
        return settings_digest(
            {
                "retriever": "simulated",
                "model": self.model,
                "curriculum": asdict(self.curriculum),
                "tell_answers": self.tell_answers,
                "temperature": self.temperature,
                "seed": self.seed,
            }
        )

    @property
    def noise(self) -> float:
        """The present share of noisy results."""
        done = self.searches / self.curriculum.searches
        return self.curriculum.noise(done if self.progress is None else self.progress)

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 3,
        contexts: Sequence[SearchContext] | None = None,
    ) -> list[list[Hit]]:
        """See ``Retriever.search``; without a context the query counts as the question."""
        check_top_k(top_k)
        told = contexts if contexts is not None else [SearchContext(query) for query in queries]
        share = self.noise
        with ThreadPoolExecutor(max(1, min(self.parallel, len(queries)))) as pool:
            work = [
                pool.submit(self._write, q, c, top_k, share)
                for q, c in zip(queries, told, strict=True)
            ]
            found = [task.result() for task in work]
        with self._lock:
            self.searches += len(queries)
        return found

    def is_noisy(self, query: str, context: SearchContext, share: float) -> bool:
        """Whether this search gets a noisy result when that share of all does."""
        key = json.dumps([self.seed, query, context.question, context.seed])
        drawn = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
        return drawn < share

    def _write(self, query: str, context: SearchContext, top_k: int, share: float) -> list[Hit]:
        noisy = self.is_noisy(query, context, share)
        answer = self.client.ask(
            "POST",
            "/chat/completions",
            {
                "model": self.model,
                "messages": [
                    {"role": "user", "content": self._prompt(query, context, top_k, noisy)}
                ],
                "temperature": self.temperature,
                "max_tokens": self.max_tokens * top_k,
            },
        )
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise RetrieverError(
                f"{self.client.url} answered in an unknown form (no choices[0].message.content)."
            ) from error
        return _hits(str(text or ""), top_k)

    def _prompt(self, query: str, context: SearchContext, count: int, noisy: bool) -> str:
        known = context.golden_answers if self.tell_answers else ()
        answer = f" (the answer is: {' or '.join(known)})" if known else ""
        head = NOISY.format(count=count) if noisy else USEFUL.format(count=count, answer=answer)
        return head + _FORM.format(query=query, question=context.question)


def _hits(text: str, top_k: int) -> list[Hit]:
    """The documents of a response; one without numbers is one document."""
    parts = _DOCUMENT.split(text)
    documents = [p.strip() for p in (parts[1:] if len(parts) > 1 else parts) if p.strip()][:top_k]
    return [
        Hit(f"sim-{hashlib.sha256(d.encode('utf-8', 'replace')).hexdigest()[:12]}", d, 1 / (n + 1))
        for n, d in enumerate(documents)
    ]
