"""What a server says about a model: its context limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""of an entry of ``/v1/models``: vLLM's; OpenRouter's and others', Groq's, Mistral's"""


def context_tokens(reply: Any, model: str) -> int | None:
    """The model's context limit in the reply of ``/v1/models``, in tokens; ``None``: it is not there.

    A server that has one model only and calls it otherwise (llama.cpp does) means that one.
    """
    entries = reply.get("data") if isinstance(reply, Mapping) else None
    entries = [e for e in entries if isinstance(e, Mapping)] if isinstance(entries, list) else []
    named = [e for e in entries if e.get("id") == model] or (entries if len(entries) == 1 else [])
    for entry in named:
        meta = entry.get("meta")
        found = [entry.get(name) for name in _FIELDS]
        found.append(meta.get("n_ctx") if isinstance(meta, Mapping) else None)  # llama.cpp's
        for value in found:
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
