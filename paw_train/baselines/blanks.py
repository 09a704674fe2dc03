"""Admissible actions in which the agent is to write words of its own, such as ``search[...]``."""

from __future__ import annotations

import re

BLANK = "[...]"
"""stands in an admissible action for the words"""
_BRACKETS = re.compile(r"[\[\]\s]+")


def filled(action: str, words: str) -> str:
    """An action with its blank filled; line breaks and brackets of the words become spaces.

    >>> filled("search[...]", "a red [cotton] shirt")
    'search[a red cotton shirt]'
    """
    return action.replace(BLANK, f"[{_BRACKETS.sub(' ', words).strip()}]")
