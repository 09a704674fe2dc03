"""Actions as the original reads them: ``search[words]`` and ``click[thing]``."""

from __future__ import annotations

from typing import NamedTuple

SEARCH_ACTION = "search[...]"
"""stands in the list of admissible actions for every search"""


class Action(NamedTuple):
    """A parsed action."""

    verb: str
    argument: str
    """in lower case; empty where the action is malformed"""


def parse_action(text: str) -> Action:
    """Reads an action; one that is not of the form ``verb[argument]`` has an empty argument.

    The original's reading, which takes the last bracket for the opening one and does not mind what
    follows the closing one, except that an argument may hold brackets itself.

    >>> parse_action("click[Buy Now]")
    Action(verb='click', argument='buy now')
    """
    for verb in ("search", "click"):
        if text.startswith(f"{verb}[") and text.endswith("]") and "\n" not in text:
            inner = text[len(verb) + 1 : -1]
            if inner:
                return Action(verb, inner.lower())
    # the greedy (.+)\\[(.+)\\] of the original, in linear time
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return Action(line[:start], line[start + 1 : end].lower()) if start > 0 else Action(text, "")
