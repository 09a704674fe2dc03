"""From a model's raw response to an action: tag extraction and validity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """What a response says."""

    action: str
    """the tagged action, stripped; empty when there is none"""
    problem: str | None = None
    """why the response is malformed, or ``None``"""


@lru_cache(maxsize=32)
def _block(tag: str) -> re.Pattern[str]:
    name = re.escape(tag)
    return re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL)


def parse_response(
    response: str, action_tag: str = "action", think_tag: str | None = "think"
) -> ParsedResponse:
    """Extracts the action from ``<think>...</think><action>...</action>``.

    Reasoning may quote the action tag, so the search starts behind the last ``</think>``. The
    first complete action block counts; an empty one is no action. A response without the reasoning
    block still has an action, and a problem.

    Args:
        response: what the model wrote.
        action_tag: tag around the action.
        think_tag: tag that must be there as well, or ``None`` where the template asks for none.
    """
    problem = None
    rest = response
    if think_tag is not None:
        end = response.rfind(f"</{think_tag}>")
        start = response.find(f"<{think_tag}>")
        if start < 0 or end < start:
            problem = f"no <{think_tag}>...</{think_tag}> block"
        else:
            rest = response[end:]
    match = _block(action_tag).search(rest)
    if match is None:
        return ParsedResponse("", f"no <{action_tag}>...</{action_tag}> block")
    action = match.group(1).strip()
    return ParsedResponse(action, problem if action else f"the <{action_tag}> block is empty")
