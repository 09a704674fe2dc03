"""The contents of a server's reply: text, thought, tool calls, finish reason, usage, context limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.policies.endpoint.retry import MalformedAnswer

_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""where servers put a thought that they give apart from the content (vLLM, DeepSeek; OpenRouter)"""
_THOUGHT_END = "</think>"
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""of an entry of ``/v1/models``: vLLM's; OpenRouter's and others', Groq's, Mistral's"""


def read_reply(reply: Any, chat: bool) -> dict[str, Any]:
    """The parts of a reply that are kept, as plain values.

    Args:
        reply: the decoded body; a string where the server sent no JSON.
        chat: of ``/chat/completions``, not ``/completions``.

    Raises:
        MalformedAnswer: there is no answer in it; the message has its beginning.
    """
    if isinstance(reply, str):
        raise MalformedAnswer(_named(reply))
    try:
        choice = reply["choices"][0]
        usage = reply.get("usage") or {}
        answer: dict[str, Any] = {
            "finish_reason": choice.get("finish_reason"),
            "prompt_tokens": _count(usage.get("prompt_tokens")),
            "completion_tokens": _count(usage.get("completion_tokens")),
        }
        answer |= _message(choice["message"]) if chat else {"text": _sendable(choice["text"])}
        if "stop_reason" in choice:  # vLLM's: which stop text it was, null for the end token
            answer["stop_reason"] = choice["stop_reason"]
        if choice.get("token_ids"):
            answer["ids"] = [int(i) for i in choice["token_ids"]]
            answer["logprobs"] = (choice.get("logprobs") or {}).get("token_logprobs") or []
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise MalformedAnswer(f"there is no answer in the reply {str(reply)[:200]!r}") from error
    return answer


def _count(value: Any) -> int:
    """A number of tokens; what is none counts as unknown, 0: the answer is still one."""
    return int(value) if isinstance(value, int | float) and value >= 0 else 0


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    text = _sendable(message.get("content"))
    reasoning = next((message[f] for f in _THOUGHT_FIELDS if message.get(f)), None)
    if reasoning is None and _THOUGHT_END in text and "<think>" not in text:
        # the chat template opened the thought, so the model's text begins inside it
        reasoning, _, text = text.partition(_THOUGHT_END)
    found: dict[str, Any] = {"text": text}
    if reasoning is not None:
        found["reasoning"] = _sendable(reasoning)
    if message.get("refusal"):
        found["refusal"] = _sendable(message["refusal"])
    if message.get("tool_calls"):
        found["tool_calls"] = [_call(call["function"]) for call in message["tool_calls"]]
    return found


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": _sendable(function["name"]),
        "arguments": _sendable(function.get("arguments")),
    }


def _named(reply: str) -> str:
    """What a reply that is no JSON seems to be."""
    start = reply.lstrip()[:200]
    if start.startswith(("data:", "event:", ":")):
        return f"the reply is a stream, which was not asked for: {start!r}"
    if start.lower().startswith(("<!doctype", "<html")):
        return f"the reply is a web page, not JSON: {start!r}"
    return f"the reply is not JSON: {start!r}"


def _sendable(text: Any) -> str:
    """Text without lone surrogates: JSON may carry them, but they could not be sent back."""
    return str(text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finish_text(answer: Mapping[str, Any], stops: Sequence[str]) -> tuple[str, str | None]:
    """A response's text up to and with the stop text, and why it ended.

    Servers leave the stop text out. vLLM reports which one it was; elsewhere a closing tag is appended
    where its opening tag has none and the finish reason is ``stop``. (A model that ends its turn inside
    the tag is then read as if it had closed it.) A response that continues after a stop text is
    truncated there, and its finish reason is ``stop``, whatever the server reports.

    Args:
        answer: of ``read_reply``.
        stops: the stop texts.

    Returns:
        (text, finish reason)
    """
    text, reason = str(answer["text"]), answer.get("finish_reason")
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        return text[: min(ends)], "stop"
    if "stop_reason" in answer:
        stop = answer["stop_reason"]
        return (text + stop if stop in stops else text), reason
    if reason == "stop":
        closing = [stop for stop in stops if stop.startswith("</")]
        last = max(closing, key=lambda stop: text.rfind(_opening(stop)), default="")
        if last and _opening(last) in text:
            return text + last, reason
    return text, reason


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
