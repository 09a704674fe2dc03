"""The parts of a conversation: new lines of a prompt, tagged blocks and special tokens of a response."""

from __future__ import annotations

import difflib
import re

_BLOCK = re.compile(
    r"<(think|action|search|information|answer|tool_call|tool_response|next_state|prediction)>"
    r"(.*?)</\1>",
    re.DOTALL,
)
_SPECIAL = re.compile(r"(<\|[^<>|\s]{1,40}\|>)")
_DIFFED = 4000
"""lines of a prompt that are compared; a longer one is shown whole"""


def changes(earlier: str, text: str) -> list[list[str]]:
    """A prompt as ``["same", lines]`` and ``["new", lines]`` against the one before it.

    Joined by line breaks they are the prompt.
    """
    lines, old = text.split("\n"), earlier.split("\n")
    if not earlier or max(len(lines), len(old)) > _DIFFED:
        return [["new", text]] if text else []
    parts: list[list[str]] = []
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if end > start:
            name = "same" if kind == "equal" else "new"
            if parts and parts[-1][0] == name:
                parts[-1][1] += "\n" + "\n".join(lines[start:end])
            else:
                parts.append([name, "\n".join(lines[start:end])])
    return parts


def blocks(response: str) -> list[list[str]]:
    """A raw answer as ``["text", ...]`` and ``[tag, ...]`` parts; put together they are all of it."""
    parts: list[list[str]] = []
    position = 0
    for match in _BLOCK.finditer(response):
        if match.start() > position:
            parts.append(["text", response[position : match.start()]])
        parts.append([match.group(1), match.group(2)])
        position = match.end()
    if position < len(response):
        parts.append(["text", response[position:]])
    return parts


def special_tokens(text: str) -> list[str]:
    """A text split at its special tokens (``<|im_end|>``), which are the odd entries."""
    return _SPECIAL.split(text)
