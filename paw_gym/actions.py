"""From a model's raw response to an action: tag extraction and validity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

BLANK = "[...]"
"""stands in an admissible action, such as WebShop's ``search[...]``, for words of the agent's own"""
_BRACKETS = re.compile(r"[\[\]\s]+")


def fill_blank(action: str, words: str) -> str:
    """An action with its blank filled; line breaks and brackets of the words become spaces.

    >>> fill_blank("search[...]", "a red [cotton] shirt")
    'search[a red cotton shirt]'
    """
    return action.replace(BLANK, f"[{_BRACKETS.sub(' ', words).strip()}]")


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A response's action, or why there is none."""

    action: str
    """the tagged action, stripped; empty when there is none"""
    problem: str | None = None
    """why the response is malformed, or ``None``"""


def parse_response(
    response: str,
    action_tag: str = "action",
    think_tag: str | None = "think",
    own_tags: Sequence[str] = (),
) -> ParsedResponse:
    """Extracts the action from ``<think>...</think><action>...</action>``.

    Reasoning may quote the action tag, so the search starts behind the last ``</think>``. The
    first complete action block counts; an empty one is no action. A response without the reasoning
    block still has an action, and a problem.

    Args:
        response: what the model wrote.
        action_tag: tag around the action.
        think_tag: tag that must be there as well, or ``None`` where the template asks for none.
        own_tags: tags that belong to the environment's actions (``search``, ``answer``). If there are
            any, the action is the first complete block of one of them, its tags included, and
            ``action_tag`` plays no part.
    """
    problem = None
    rest = response
    if think_tag is not None:
        closed = response.rfind(f"</{think_tag}>")
        begun = response.find(f"<{think_tag}>")
        if begun < 0 or closed < begun:
            problem = f"no <{think_tag}>...</{think_tag}> block"
        else:
            rest = response[closed:]
    if own_tags:
        return _own_block(rest, own_tags, problem)
    opened = rest.find(f"<{action_tag}>")
    start = opened + len(action_tag) + 2
    end = rest.find(f"</{action_tag}>", start) if opened >= 0 else -1
    if end < 0:
        return ParsedResponse("", f"no <{action_tag}>...</{action_tag}> block")
    action = rest[start:end].strip()
    return ParsedResponse(action, problem if action else f"the <{action_tag}> block is empty")


def _own_block(rest: str, tags: Sequence[str], problem: str | None) -> ParsedResponse:
    blocks = []
    for tag in tags:
        opened = rest.find(f"<{tag}>")
        closed = rest.find(f"</{tag}>", opened) if opened >= 0 else -1
        if closed >= 0:
            blocks.append((opened, closed, tag))
    if not blocks:
        names = " or ".join(f"<{tag}>...</{tag}>" for tag in tags)
        return ParsedResponse("", f"no {names} block")
    opened, closed, tag = min(blocks)
    inside = rest[opened + len(tag) + 2 : closed].strip()
    action = f"<{tag}>{inside}</{tag}>"
    return ParsedResponse(action, problem if inside else f"the <{tag}> block is empty")
