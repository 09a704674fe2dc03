"""Who writes the documents of a simulated search engine: a language model, or a fixed script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from paw_gym.http import HttpError, JsonClient
from paw_gym.replies import read_chat, split_thought
from paw_gym.retrieval.base import RetrieverError, SearchContext

USEFUL = (
    "You stand in for a web search engine. Below are a search query and the question that the person "
    "searching wants to answer{answer}. Write {count} different documents, about 30 words each, as a "
    "search for the query would return them. They must contain what is needed to answer the question, "
    "stated as plain facts. Do not mention the question or these instructions."
)
"""asks for documents that help; ``{answer}`` stands for the golden answers where they are known"""
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


class DocumentWriter(Protocol):
    """Writes what a search might return."""

    def write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        """At most ``count`` documents, best first.

        Args:
            query: what is searched for.
            context: the question behind it.
            count: how many documents are wanted.
            noisy: whether they must be of no help.

        Raises:
            RetrieverError: nothing could be written.
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
        """See ``DocumentWriter``."""
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
        return _documents(split_thought(answer["text"])[1], count)  # a thought knows the answer

    def _prompt(self, query: str, context: SearchContext, count: int, noisy: bool) -> str:
        known = context.golden_answers if self.tell_answers else ()
        answer = f" (the answer is: {' or '.join(known)})" if known else ""
        head = NOISY.format(count=count) if noisy else USEFUL.format(count=count, answer=answer)
        return head + _FORM.format(query=query, question=context.question)

    def settings(self) -> dict[str, Any]:
        """See ``DocumentWriter``; what a model writes at a temperature is not in it."""
        kept = ("model", "tell_answers", "temperature")
        return {name: getattr(self, name) for name in kept}


def _documents(text: str, count: int) -> list[str]:
    """The documents of a response; one without numbers is one document."""
    parts = _DOCUMENT.split(text)
    return [p.strip() for p in (parts[1:] if len(parts) > 1 else parts) if p.strip()][:count]


class ScriptWriter:
    """Fixed sentences with the golden answer, or without it: no model, for tests and dry runs.

    A policy that trains on it learns to read these sentences and nothing else.
    """

    def write(self, query: str, context: SearchContext, count: int, noisy: bool) -> list[str]:
        """See ``DocumentWriter``."""
        text = f"Many pages are about {query}. None of them says more."
        if context.golden_answers and not noisy:
            text = f"{context.question} {context.golden_answers[0]}."
        return [f"{text} Page {number}." for number in range(1, count + 1)]

    def settings(self) -> dict[str, Any]:
        """See ``DocumentWriter``."""
        return {"writer": "script"}
