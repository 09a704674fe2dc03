"""The meaning of a failed request: a sentence, the setting that helps, and what can be sent instead."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from paw_train.policies.endpoint.retry import MalformedAnswer

_LOG = logging.getLogger("paw_train.endpoint")
_REFUSED = frozenset({400, 422})
_UNKNOWN = re.compile(
    r"unsupported|not supported|does(n't| not) support|not compatible|unrecogni[sz]ed|unknown"
    r"|unexpected|not permitted|not allowed|extra (inputs|fields)|deprecated|not available"
)
"""the words of servers that refuse a field of the body"""
_OVERFLOW = re.compile(
    r"context.?length|context window|context.?size|n_ctx|prompt is too long|input is too long"
    r"|too many (input )?tokens"
)
_LIMIT = re.compile(
    r"(?:context.?length|context window|context.?size|n_ctx|maximum|limit)[^0-9]{0,40}?(\d[\d,]{2,})"
)


def is_overflow(error: Exception) -> bool:
    """Whether a server refused a context for its length."""
    if getattr(error, "code", None) == "context_length_exceeded":
        return True
    status = getattr(error, "status_code", None)
    return status in (400, 413, 422) and bool(_OVERFLOW.search(str(error).lower()))


def overflow_limit(error: Exception) -> int | None:
    """The context limit that such a refusal names, in tokens."""
    found = _LIMIT.search(str(error).lower())
    return int(found[1].replace(",", "")) if found else None


class Fallbacks:
    """Fields of the body that a server refuses, and their replacements.

    Args:
        token_limit_field: the setting's value.
    """

    def __init__(self, token_limit_field: str) -> None:
        self._limit_field = token_limit_field
        self._refused: set[str] = set()

    @property
    def taken(self) -> list[str]:
        """Sentences on what is sent in place of the settings, for logs and results."""
        return [_SENTENCES[name] for name in sorted(self._refused)]

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body without the fields that were refused earlier."""
        sent = dict(body)
        for name in self._refused & sent.keys():
            value = sent.pop(name)
            if name == "max_tokens":
                sent["max_completion_tokens"] = value
        return sent

    def learn(self, error: Exception, sent: Mapping[str, Any]) -> bool:
        """Whether a request may be repeated at once, without what its refusal names.

        Args:
            error: the refusal.
            sent: the body that was refused.
        """
        name = self._named(error, sent)
        if name is None:
            return False
        if name not in self._refused:
            self._refused.add(name)
            _LOG.warning("%s", _SENTENCES[name])
        return True

    def recall(self, sentences: object) -> None:
        """Takes over what an answer from the cache needed."""
        for name, sentence in _SENTENCES.items():
            if isinstance(sentences, list) and sentence in sentences:
                self._refused.add(name)

    def _named(self, error: Exception, sent: Mapping[str, Any]) -> str | None:
        if getattr(error, "status_code", None) not in _REFUSED or is_overflow(error):
            return None
        text, parameter = str(error).lower(), getattr(error, "param", None)
        for name in _SENTENCES:
            if name not in sent or (name == "max_tokens" and self._limit_field != name):
                continue
            named = parameter == name or re.search(rf"['\"`]{name}['\"`]|\b{name}\b", text)
            if named and _UNKNOWN.search(text):
                return name
        return None


_SENTENCES = {
    "max_tokens": "The server refuses `max_tokens`; `max_completion_tokens` is sent instead "
    "(endpoint.token_limit_field=max_completion_tokens).",
    "stop": "The server refuses `stop`; responses are truncated here at the stop text "
    "(endpoint.send_stop=false).",
    "seed": "The server refuses `seed`; none is sent, and sampled responses cannot be repeated there "
    "(endpoint.send_seed=false).",
}
"""the fallback for each field of the body, and the setting that chooses it from the start"""

_HINTS = (
    (r"stream", "endpoint.extra={stream: false} asks for a reply in one piece."),
    (r"web page", "Is endpoint.url right? It usually ends in /v1."),
    (r"temperature", "evaluation.temperature=1 is what some models take alone."),
    (r"\bstop\b", "endpoint.send_stop=false leaves the stop texts out."),
    (r"\bseed\b", "endpoint.send_seed=false leaves the seed out."),
    (r"top_k|min_p|top_p", "rollout.top_k=0, rollout.min_p=0 and rollout.top_p=1 leave these out."),
    (r"max_(completion_)?tokens.{0,80}(too large|at most|exceed)",
     "rollout.max_response_tokens=N asks for shorter responses."),
    (r"max_tokens", "endpoint.token_limit_field=max_completion_tokens names the limit otherwise."),
    (r"tool", "agent.action_format=tags needs no tools."),
)  # fmt: skip
"""words of a refusal, and the setting that helps"""


def hint(error: Exception, known_limit: int | None = None) -> str | None:
    """The setting that helps against a failure, where there is one.

    Args:
        error: why the request was given up.
        known_limit: the model's context limit, where it is known.
    """
    import openai

    status = getattr(error, "status_code", None)
    if is_overflow(error):
        limit = overflow_limit(error) or known_limit
        return (
            f"endpoint.context_tokens={limit or 'N'} keeps dialogues below it; so do shorter prompts "
            "(env.history_length, agent.examples) and rollout.max_response_tokens."
        )
    if isinstance(error, openai.APITimeoutError):
        return (
            "endpoint.timeout=SECONDS waits longer, endpoint.concurrency=N asks for less at a time."
        )
    if status == 429:
        return (
            "endpoint.requests_per_minute, tokens_per_minute and concurrency keep to the account's "
            "limits; endpoint.retries waits longer for them."
        )
    if isinstance(status, int) and status >= 500:
        return "The server's own log has the details."
    if status in _REFUSED or isinstance(error, MalformedAnswer):
        text = str(error).lower()
        return next((advice for words, advice in _HINTS if re.search(words, text)), None)
    return None
