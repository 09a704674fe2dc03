"""Errors that name the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The members of ``valid`` most similar to ``name``, best first; not empty if ``valid`` is not."""
    names = list(valid)
    return difflib.get_close_matches(name, names, n=count, cutoff=0.3) or names[:count]


def did_you_mean(name: str, valid: Iterable[str], count: int = 3) -> str:
    """A sentence that offers the nearest valid names."""
    options = nearest(name, valid, count)
    return (
        f"Did you mean {' or '.join(repr(o) for o in options)}?" if options else "There are none."
    )


def require_choice(what: str, value: str, valid: Iterable[str]) -> None:
    """Raises ``ValueError`` for a value that is not among the valid ones; names the nearest.

    Args:
        what: the setting, for the message.
        value: what was given.
        valid: the names to choose from.
    """
    names = list(valid)
    if value not in names:
        raise ValueError(f"Unknown {what} {value!r}. {did_you_mean(value, names)}")


class UnknownTaskError(KeyError):
    """A task id that the task set does not hold; its text is a plain sentence (``KeyError`` quotes)."""

    def __str__(self) -> str:
        return str(self.args[0])
