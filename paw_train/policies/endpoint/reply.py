"""The contents of a server's reply that are kept, and where a response ends; its context limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.replies import (
    MalformedAnswer,
    answers,
    read_choice,
    read_message,
    sendable,
    stop_end,
    thoughts,
    truncate,
)

_CACHED_FIELDS = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
"""of ``usage`` or its ``prompt_tokens_details``: OpenAI's and its followers', DeepSeek's, Anthropic's"""
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""of an entry of ``/v1/models``: vLLM's; OpenRouter's and others', Groq's, Mistral's"""


def read_reply(reply: Any, chat: bool) -> dict[str, Any]:
    """The parts of a reply that are kept, as plain values.

    Args:
        reply: the decoded body; a string where the server sent no JSON.
        chat: of ``/chat/completions``, not ``/completions``.

    Raises:
        ReportedError: the server reports in it that the request has failed.
        MalformedAnswer: there is no answer in it; the message has its beginning.
    """
    if isinstance(reply, str):
        raise MalformedAnswer(_named(reply))
    choice, reason = read_choice(reply)
    try:
        usage = reply.get("usage") or {}
        answer: dict[str, Any] = {
            "finish_reason": reason,
            "prompt_tokens": _count(usage.get("prompt_tokens")),
            "completion_tokens": _count(usage.get("completion_tokens")),
            "cached_tokens": _cached(usage),
        }
        answer |= read_message(choice) if chat else {"text": sendable(choice["text"])}
        if "stop_reason" in choice:  # vLLM's: which stop text it was, null for the end token
            answer["stop_reason"] = choice["stop_reason"]
        if choice.get("token_ids"):
            answer["ids"] = [int(i) for i in choice["token_ids"]]
            answer["logprobs"] = (choice.get("logprobs") or {}).get("token_logprobs") or []
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise MalformedAnswer(f"there is no answer in the reply {str(reply)[:200]!r}") from error
    return answer


def _cached(usage: Mapping[str, Any]) -> int:
    """The tokens of a prompt that the server had in its prefix cache; no more than the prompt has."""
    details = usage.get("prompt_tokens_details")
    places = [details if isinstance(details, Mapping) else {}, usage]
    found = [_count(place.get(name)) for place in places for name in _CACHED_FIELDS]
    return min(max(found), _count(usage.get("prompt_tokens")))


def _count(value: Any) -> int:
    """A number of tokens; what is none counts as unknown, 0: the answer is still one."""
    return int(value) if isinstance(value, int | float) and value >= 0 else 0


def _named(reply: str) -> str:
    """What a reply that is no JSON seems to be."""
    start = reply.lstrip()[:200]
    if start.startswith(("data:", "event:", ":")):
        return f"the reply is a stream, which was not asked for: {start!r}"
    if start.lower().startswith(("<!doctype", "<html")):
        return f"the reply is a web page, not JSON: {start!r}"
    return f"the reply is not JSON: {start!r}"


def finish_text(
    answer: Mapping[str, Any], stops: Sequence[str], opened: bool = False
) -> tuple[str, str | None]:
    """A response's text up to and with the stop text, and why it ended.

    Servers leave the stop text out. vLLM reports which one it was; elsewhere a closing tag is appended
    where its opening tag has none and the model has ended the response itself. (A model that ends its
    turn inside the tag is then read as if it had closed it.) A response that continues after a stop text
    is truncated there, and its finish reason is ``stop``, whatever the server reports.

    Args:
        answer: of ``read_reply``.
        stops: the stop texts.
        opened: the text begins in a thought (``ChatFormat.thought_opened``).

    Returns:
        (text, finish reason)
    """
    text, reason = str(answer["text"]), answer.get("finish_reason")
    if answer.get("reasoning"):
        text = text.lstrip()  # what stands between a thought and the answer
    if stop_end(text, stops, opened) is not None:
        return truncate(text, stops, opened), "stop"
    found = thoughts(text, opened)
    if found.unclosed or reason not in ("stop", None):
        return truncate(text, stops, opened), reason
    if answer.get("stop_reason") in stops:
        return text + answer["stop_reason"], reason
    if answer.get("stop_reason", "") is None:
        return text, reason
    begin = next((start for start, _ in reversed([*answers(text, found)])), len(text))
    closing = [stop for stop in stops if stop.startswith("</")]
    last = max(closing, key=lambda stop: text.rfind(_opening(stop), begin), default="")
    if last and _opening(last) in text[begin:]:
        return text + last, reason
    return text, reason


def cut_in_thought(answer: Mapping[str, Any], opened: bool = False) -> bool:
    """Whether a server seems to have ended a response at a stop text inside the thought.

    Args:
        answer: of ``read_reply``, to a request with stop texts.
        opened: the text begins in a thought.
    """
    if answer.get("finish_reason") not in ("stop", None) or answer.get("stop_reason", "") is None:
        return False
    text = str(answer["text"])
    # the end that a beginning lacks may be what the stop text has cut off
    unclosed = answer.get("unclosed") or thoughts(text, opened, sampling=True).unclosed
    return bool(unclosed or (answer.get("reasoning") and not text.strip()))


def may_be_in_thought(answer: Mapping[str, Any], stops: Sequence[str]) -> bool:
    """Whether an action follows prose and no thought: the thought may be one that a template opened.

    Args:
        answer: of ``read_reply``, to a request with these stop texts.
        stops: the stop texts.
    """
    text, found = str(answer["text"]), thoughts(str(answer["text"]))
    if answer.get("reasoning") or answer.get("finish_reason") not in ("stop", None):
        return False
    begun = [at for s in stops if s.startswith("</") and (at := text.find(_opening(s))) >= 0]
    start = next((start for start, _ in answers(text, found)), len(text))
    return bool(begun) and bool(text[start : min(begun)].strip())


def _opening(closing: str) -> str:
    return closing.replace("</", "<", 1)


def context_tokens(reply: Any, model: str) -> int | None:
    """The model's context limit in the reply of ``/v1/models``, in tokens; ``None``: it is not there.

    A server that has one model only and calls it otherwise (llama.cpp does) means that one.
    """
    entries = reply.get("data") if isinstance(reply, Mapping) else None
    entries = [e for e in entries if isinstance(e, Mapping)] if isinstance(entries, list) else []
    named = [e for e in entries if e.get("id") == model] or (entries if len(entries) == 1 else [])
    for entry in named:
        meta = entry.get("meta")
        found = [entry.get(name) for name in _CONTEXT_FIELDS]
        found.append(meta.get("n_ctx") if isinstance(meta, Mapping) else None)  # llama.cpp's
        for value in found:
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
