"""Errors that name the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_SIMILAR = 0.55
"""smallest difflib ratio of names that one may have been meant for the other"""
_SIMILAR_PART = 0.7
"""the same for a part of a name, such as ``Boxes`` of ``tests/Boxes-v0``"""
_LISTED = 12
"""names that a sentence lists"""
_SEARCHED = 1000
"""names whose parts are compared"""


def similar(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The valid names that may have been meant by ``name``, best first; empty if none is similar."""
    names = list(valid)
    near = difflib.get_close_matches(name, names, n=count, cutoff=_SIMILAR)
    if near:
        return near
    parts = {p: known for known in names[:_SEARCHED] for p in re.split(r"[\W_]+", known.lower())}
    near = difflib.get_close_matches(name.lower(), parts, cutoff=_SIMILAR_PART)
    return list(dict.fromkeys(parts[part] for part in near))[:count]


def did_you_mean(name: str, valid: Iterable[str], count: int = 3, total: int = 0) -> str:
    """A sentence that offers the valid names that are similar; if none is, it lists the valid ones.

    ``total``: how many valid names there are, if ``valid`` holds a part of them.

    >>> did_you_mean("serach", ["search", "answer"])
    "Did you mean 'search'?"
    >>> did_you_mean("x", ["search", "answer"])
    "Valid: 'search', 'answer'."
    """
    names = list(valid)
    if near := similar(name, names, count):
        return offer(near)
    if not names:
        return "There are none."
    more = f" and {max(total, len(names)) - _LISTED} more" if len(names) > _LISTED else ""
    return f"Valid: {', '.join(map(repr, names[:_LISTED]))}{more}."


def offer(near: Iterable[str]) -> str:
    """A sentence that offers the names that may have been meant, at least one."""
    *first, last = map(repr, near)
    return f"Did you mean {', '.join(first)} or {last}?" if first else f"Did you mean {last}?"


def require_choice(what: str, value: object, valid: Iterable[str]) -> None:
    """Raises ``ValueError`` for a value that is not among the valid ones or not a name; names the nearest."""
    names = list(valid)
    if value not in names:
        given = value if isinstance(value, str) else ""
        raise ValueError(f"Unknown {what} {value!r}. {did_you_mean(given, names)}")


class UnknownTaskError(KeyError):
    """A task id that the task set does not hold; its text is a plain sentence (``KeyError`` adds quotes)."""

    def __str__(self) -> str:
        return str(self.args[0])
