"""The meaning of a failed request: a sentence, the setting that helps, and what can be sent instead."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paw_gym.internals.replies import MalformedAnswer, ReportedError

if TYPE_CHECKING:
    from paw_train.policies.endpoint.transport import Route

_LOG = logging.getLogger("paw_train.endpoint")
_REFUSED = frozenset({400, 422})
_UNKNOWN = re.compile(
    r"unsupported|not supported|does(n't| not) support|not compatible|unrecogni[sz]ed|unknown"
    r"|unexpected|not permitted|not allowed|extra (inputs|fields)|deprecated|not available"
)
"""the words of servers that refuse a field of the body"""
_VALUE = re.compile(r"unsupported value|only the default|does(n't| not) support -?[\d.]+")
"""the words of servers that know a field and refuse its value"""


class Fallbacks:
    """Fields of the body that a server refuses, and their replacements."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    @property
    def taken(self) -> list[str]:
        """Sentences on what is sent in place of the settings, for logs and results."""
        return [_SENTENCES[name] for name in sorted(self._refused)]

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        sent = dict(body)
        for name in self._refused:
            field = name.partition(" ")[0]
            if field not in sent:
                continue
            value = sent.pop(field)
            if name == "max_tokens":
                sent.setdefault("max_completion_tokens", value)
        return sent

    def learn(self, error: Exception, sent: Mapping[str, Any]) -> bool:
        """True if a request may be repeated at once, without the field that its refusal names."""
        if getattr(error, "status_code", None) not in _REFUSED or is_overflow(error):
            return False
        text, name = error_text(error), _field(error, sent)
        if name not in _SENTENCES or not _UNKNOWN.search(text) or _VALUE.search(text):
            return False
        self.take(name)
        return True

    def take(self, name: str) -> None:
        """Takes a fallback (of ``_SENTENCES``) from now on."""
        if name not in self._refused:
            self._refused.add(name)
            _LOG.warning("%s", _SENTENCES[name])

    def recall(self, sentences: object) -> None:
        """Takes over what an answer from the cache needed."""
        for name, sentence in _SENTENCES.items():
            if isinstance(sentences, list) and sentence in sentences:
                self._refused.add(name)


def _field(error: Exception, sent: Mapping[str, Any]) -> str | None:
    """The field of the body that a refusal is about: by its ``param``, else the one that its text names.

    Of several names, it is the one nearest to the refusal's word, quoted ones first. A part of another
    word (``seed`` of ``doubao-seed-1.6``) is not a name.
    """
    parameter = getattr(error, "param", None)
    if isinstance(parameter, str) and parameter:
        return parameter if parameter in sent else None
    text = error_text(error)
    refusal = _UNKNOWN.search(text)
    middle = refusal.start() if refusal else 0
    for pattern in (r"['\"`]{}['\"`]", r"(?<![\w./-]){}(?![\w/-]|\.\w)"):
        places = [
            (abs(found.start() - middle), name)
            for name in {*_ADVICE, *_SENTENCES}
            for found in re.finditer(pattern.format(name), text)
        ]
        if places:
            name = min(places)[1]
            return name if name in sent else None
    return None


_SAMPLING = (
    "The server refuses `{0}`; it is left out, so responses are sampled with the server's default."
)
_SENTENCES = {
    "max_tokens": "The server refuses `max_tokens`; `max_completion_tokens` is sent instead.",
    "stop": "The server refuses `stop`; responses are truncated here at the stop text.",
    "stop in thoughts": "The server ends a thought at a stop text in it; none is sent, and responses are "
    "truncated here.",
    "seed": "The server refuses `seed`; none is sent, and sampled responses cannot be repeated "
    "there.",
    "tool_choice": "The server refuses `tool_choice`; it is left out, so the model decides.",
    **{name: _SAMPLING.format(name) for name in ("temperature", "top_p", "top_k")},
}
"""the fallback for each field of the body, and the setting that chooses it from the start"""

_ADVICE = {
    "temperature": "evaluation.temperature=1 is what some models take alone.",
    "stop": "endpoint.extra={stop: null} sends no stop texts.",
    "max_tokens": "rollout.max_response_tokens=N asks for shorter responses.",
    "max_completion_tokens": "rollout.max_response_tokens=N asks for shorter responses.",
    "tools": "agent.action_format=tags needs no tools.",
    "tool_choice": "agent.action_format=tags needs no tools.",
}
"""the setting that helps, by the field whose value is refused"""


def hint(
    error: Exception, sent: Mapping[str, Any] | None = None, known_limit: int | None = None
) -> str | None:
    """The setting that helps against a failure, if there is one."""
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
            "endpoint.concurrency=N asks for less at a time, endpoint.retries=N waits longer for the "
            "account's limits."
        )
    if isinstance(status, int) and status >= 500:
        return "The server's own log has the details."
    if isinstance(error, json.JSONDecodeError):
        return "The reply is not JSON, or was cut off; the log of the server or its proxy has more."
    if isinstance(error, MalformedAnswer):
        if "stream" in str(error):
            return "endpoint.extra={stream: false} asks for a reply in one piece."
        return "Is endpoint.url right? It usually ends in /v1." if "page" in str(error) else None
    if status in _REFUSED:
        if "enable_thinking" in error_text(error):  # Qwen's, if nothing is streamed
            return "endpoint.extra={enable_thinking: false} leaves the thought out."
        return _ADVICE.get(_field(error, sent or {}) or "")
    return None


# --- failures of the whole run ------------------------------------------------------------------------

_PASSING = frozenset({408, 409, 425, 429})
_QUOTA = "insufficient_quota"


def is_passing(error: Exception) -> bool:
    """True if the same request may succeed later."""
    import openai

    if isinstance(error, openai.APIStatusError):
        passing = error.status_code in _PASSING or error.status_code >= 500
        return passing and error.code != _QUOTA
    kinds = (openai.APIConnectionError, openai.APIResponseValidationError, json.JSONDecodeError)
    return isinstance(error, (*kinds, MalformedAnswer))


def run_failure(
    error: Exception, route: Route, first_contact: bool, said: str, refusal: Mapping[int, str]
) -> str | None:
    """Why no request of a run can succeed, in words; ``None``: others may.

    Args:
        first_contact: nothing was ever answered there, and asking again did not help.
        refusal: what refusals mean, by status.
    """
    from paw_train.policies.endpoint.transport import CONNECT_SECONDS, http_library

    httpx = http_library()
    url, proxy = route.shown, route.proxy_name
    directly = f"NO_PROXY={route.host} asks the server directly."
    cause = error.__cause__
    unconnected = isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
    if unconnected and first_contact:
        why = str(cause) or f"no connection within {CONNECT_SECONDS:g} s"
        if proxy:
            return f"Nothing answers at {url} by {proxy}: {why}. {directly}"
        return (
            f"Nothing answers at {url} ({why}). Is the server running, and does the address end in /v1 "
            "(endpoint.url=...)?"
        )
    malformed = isinstance(error, MalformedAnswer) and not isinstance(error, ReportedError)
    if malformed and first_contact:
        return (
            f"{url} answers, but not as an OpenAI-compatible API: {error}. "
            f"{hint(error) or 'Is endpoint.url right? It usually ends in /v1.'}"
        )
    if _is_proxy_s(error, proxy is not None) and (first_contact or not is_passing(error)):
        return (
            f"{proxy or 'A proxy or firewall'} answers in place of {url}. "
            f"{directly if proxy else ''} Its message: {said}"
        )
    used_up = getattr(error, "code", None) == _QUOTA
    advice = "The account's quota is used up." if used_up else None
    advice = refusal.get(getattr(error, "status_code", 0), advice)
    return None if advice is None else f"{url} refuses: {advice} Its message: {said}"


def _is_proxy_s(error: Exception, proxied: bool) -> bool:
    """True if an answer is a proxy's page; if no proxy is used, by status 403 or Squid's header."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    status = getattr(error, "status_code", None)
    if status == 407:
        return True
    page = "html" in headers.get("content-type", "")
    marked = "squid" in headers.get("server", "") or "x-squid-error" in headers
    return page and status in (403, 502, 503, 504) and (proxied or marked or status == 403)


# --- contexts that are too long -----------------------------------------------------------------------

_CODES = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded",
    "request_too_large", "tokens_limit_reached",
})  # fmt: skip
"""codes and types of OpenAI and its followers, llama.cpp, Z.ai, Anthropic, GitHub"""
_OTHER_STATUS = frozenset({401, 402, 403, 404, 407})
"""statuses of refusals that are never about length, whatever their text says"""
_CONTEXT = re.compile(
    r"context.?(length|window|size|limit)|n_ctx|max_(model|seq)_len|max_num_tokens"
    r"|(range of |maximum )?input length|prompt length|token limit|too many (input |prompt )?tokens"
    r"|reduce the length|request too large"
    r"|\b(prompt|inputs?|messages|sequence|conversation)\b[^.]{0,40}(too (long|large)|超长)"
    r"|\b(prompt|inputs?|tokens?)\b[^.]{0,80}(exceed|longer than)[^.]{0,60}(max|limit|length|tokens)"
    r"|\b(inputs?|tokens)\b[^.]{0,60}must (be <=|have less than)"
)
_RATE = re.compile(r"per (minute|hour|day)|rate.?limit|quota|too many requests")
_RESPONSE = re.compile(r"maximum output for|max tokens must be|maximum tokens you requested")
"""texts on the length of responses"""

_LIMIT = re.compile(
    r"(?:max(?:imum)?(?: model)?(?: context| prompt| input)? (?:length|size|tokens|limit)"
    r"|context (?:length|window)|n_ctx|max_num_tokens|tokens allowed|limit for this model"
    r"|(?<!exceeds )limit|cannot exceed|less than|<= |> |\[1, ?)"
    r"(?: of| is|:)?(?: only)?[\s:(]*(\d[\d,]{2,})\b(?! \+)"
)
"""``maximum context length is 4096``, ``limit: 8192``, ``210000 tokens > 200000``; not MiniMax's
``exceeds limit (2013)``, which is the number of the error"""


def is_overflow(error: Exception) -> bool:
    """True if a server refused a context for its length."""
    status = getattr(error, "status_code", None)
    if status in _OTHER_STATUS:
        return False
    if status == 413 or any(str(getattr(error, key, "")) in _CODES for key in ("code", "type")):
        return True
    text = error_text(error)
    if "request too large" in text:  # for any minute of the account: no wait would help
        return True
    if status == 429 or _RATE.search(text) or _RESPONSE.search(text):
        return False
    return bool(_CONTEXT.search(text))


def overflow_limit(error: Exception) -> int | None:
    """The context limit that such a refusal names, in tokens, if it is in one of the usual places."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("n_ctx"), int):  # llama.cpp's
        return int(body["n_ctx"])
    found = _LIMIT.search(error_text(error))
    return int(found[1].replace(",", "")) if found else None


def error_text(error: Exception) -> str:
    return str(getattr(error, "body", None) or error).lower()
