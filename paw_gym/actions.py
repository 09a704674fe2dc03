"""From a model's raw response to an action: tag extraction and validity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paw_gym.replies import answers, thoughts

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

    The first complete action block outside all thoughts counts (see ``paw_gym.replies.thoughts``); an
    empty one is no action. A response without the reasoning block still has an action, and a problem; a
    thought that does not end has no action.

    Args:
        response: what the model wrote.
        action_tag: tag around the action.
        think_tag: tag that must be there as well, or ``None`` where the template asks for none.
        own_tags: tags that belong to the environment's actions (``search``, ``answer``). If there are
            any, the action is the first complete block of one of them, its tags included, and
            ``action_tag`` plays no part.
    """
    found = thoughts(response, tag=think_tag)
    tags = own_tags or (action_tag,)
    parts = (_first_block(response, *part, tags) for part in answers(response, found))
    block = next((block for block in parts if block is not None), None)
    if block is None:
        if found.unclosed:
            return ParsedResponse("", "the thought does not end")
        names = " or ".join(f"<{tag}>...</{tag}>" for tag in tags)
        return ParsedResponse("", f"no {names} block")
    opened, inside, tag = block
    problem = None
    if think_tag is not None and not any(end <= opened for _, end in found.spans):
        problem = f"no <{think_tag}>...</{think_tag}> block"
    if not inside:
        problem = f"the <{tag}> block is empty"
    return ParsedResponse(f"<{tag}>{inside}</{tag}>" if own_tags else inside, problem)


def _first_block(
    text: str, start: int, end: int, tags: Sequence[str]
) -> tuple[int, str, str] | None:
    """The first complete block of a part of a text: where it begins, what is in it, its tag."""
    blocks = []
    for tag in tags:
        opened = text.find(f"<{tag}>", start, end)
        closed = text.find(f"</{tag}>", opened, end) if opened >= 0 else -1
        if closed >= 0:
            blocks.append((opened, text[opened + len(tag) + 2 : closed].strip(), tag))
    return min(blocks, default=None)
