"""Answers of an endpoint: read from its replies, finished at their stop texts, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paw_gym.internals.files import private_file
from paw_gym.internals.replies import (
    MalformedAnswer,
    answers,
    read_choice,
    read_message,
    stop_end,
    thoughts,
    truncate,
)

_CACHED_FIELDS = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
"""of ``usage`` or its ``prompt_tokens_details``: OpenAI's and its followers', DeepSeek's, Anthropic's"""
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""of an entry of ``/v1/models``: vLLM's; OpenRouter's and others', Groq's, Mistral's"""
_FORMAT = 3
"""of a recorded answer; requests with answers in another format are sent again"""


def read_reply(reply: Any) -> dict[str, Any]:
    """The parts of a reply that are kept, as plain values.

    Raises:
        ReportedError: the server reports in it that the request has failed.
        MalformedAnswer: there is no answer in it; the message quotes its beginning.
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
        answer |= read_message(choice)
        if "stop_reason" in choice:  # vLLM's: which stop text it was, null for the end token
            answer["stop_reason"] = choice["stop_reason"]
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
    """A number of tokens; anything else counts as unknown, 0: the answer is still valid."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


def _named(reply: str) -> str:
    start = reply.lstrip()[:200]
    if start.startswith(("data:", "event:", ":")):
        return f"the reply is a stream, which was not asked for: {start!r}"
    if start.lower().startswith(("<!doctype", "<html")):
        return f"the reply is a web page, not JSON: {start!r}"
    return f"the reply is not JSON: {start!r}"


def finish_text(answer: Mapping[str, Any], stops: Sequence[str]) -> tuple[str, str | None]:
    """A response's text up to and including the stop text, and why it ended.

    Servers leave the stop text out. vLLM reports which one it was; with others, a closing tag is appended
    if its opening tag has none and the model has ended the response itself. (A model that ends its
    turn inside the tag is then read as if it had closed it.) A response that continues after a stop text
    is truncated there, and its finish reason is ``stop``, whatever the server reports.
    """
    text, reason = str(answer["text"]), answer.get("finish_reason")
    if answer.get("reasoning"):
        text = text.lstrip()  # the blanks between a thought and the answer
    if stop_end(text, stops) is not None:
        return truncate(text, stops), "stop"
    found = thoughts(text)
    if found.unclosed or reason not in ("stop", None):
        return truncate(text, stops), reason
    if answer.get("stop_reason") in stops:
        return text + answer["stop_reason"], reason
    if answer.get("stop_reason", "") is None:
        return text, reason
    begin = next((start for start, _ in reversed([*answers(text, found)])), len(text))
    last = max(stops, key=lambda stop: text.rfind(_opening(stop), begin), default="")
    if last and _opening(last) in text[begin:]:
        return text + last, reason
    return text, reason


def cut_in_thought(answer: Mapping[str, Any]) -> bool:
    """True if a server seems to have ended a response at a stop text inside the thought."""
    if answer.get("finish_reason") not in ("stop", None) or answer.get("stop_reason", "") is None:
        return False
    text = str(answer["text"])
    # the missing end of a thought may be what the stop text has cut off
    unclosed = answer.get("unclosed") or thoughts(text, sampling=True).unclosed
    return bool(unclosed or (answer.get("reasoning") and not text.strip()))


def may_be_in_thought(answer: Mapping[str, Any], stops: Sequence[str]) -> bool:
    """True if the text is prose, or begins with it, and marks no thought: a template may have opened one."""
    text, found = str(answer["text"]), thoughts(str(answer["text"]))
    if answer.get("reasoning") or answer.get("finish_reason") not in ("stop", None):
        return False
    begun = [at for s in stops if (at := text.find(_opening(s))) >= 0]
    start = next((start for start, _ in answers(text, found)), len(text))
    return bool(begun) and bool(text[start : min(begun)].strip())


def _opening(closing: str) -> str:
    return closing.replace("</", "<", 1)


def context_tokens(reply: Any, model: str) -> int | None:
    """The model's context limit in the reply of ``/v1/models``, or that of a server's only model."""
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


# --- on disk ------------------------------------------------------------------------------------------


def _opened(path: Path) -> sqlite3.Connection:
    # the endpoint's thread uses it, one call at a time
    found = sqlite3.connect(
        private_file(path), timeout=60.0, check_same_thread=False, isolation_level=None
    )
    try:
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=NORMAL")
        found.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT)")
    except sqlite3.DatabaseError:
        found.close()
        raise
    return found


class AnswerCache:
    """Answers by request in one SQLite file; several processes may share it.

    An answer is on disk as soon as ``put`` returns, so a killed run loses nothing that was paid for.

    Raises:
        ValueError: the file is something else, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = _opened(path)
        except (sqlite3.DatabaseError, OSError) as error:
            raise ValueError(
                f"{path} is no cache of answers, or damaged ({error}). Delete it, or name another "
                "file (endpoint.cache=FILE) or none (endpoint.cache=null)."
            ) from error

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer to a request; ``None``: there is none, or a damaged one, which is asked for again."""
        query = (
            "SELECT CAST(answer AS BLOB) FROM answers WHERE key = ?"  # bytes: text may be damaged
        )
        row = self._db.execute(query, (key,)).fetchone()
        try:
            answer = json.loads(row[0]) if row else None
        except (ValueError, TypeError):
            answer = None
        return answer if isinstance(answer, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        text = json.dumps(answer)  # ASCII: SQLite refuses lone surrogates, which models print
        self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, text))

    def close(self) -> None:
        self._db.close()


def request_key(url: str, kind: str, body: Mapping[str, Any], seed: int | None) -> str:
    """Names a request by all that decides its answer, wherever the run is."""
    whole = json.dumps([_FORMAT, url, kind, body, seed], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
