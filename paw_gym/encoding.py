"""Texts as UTF-8 can hold them."""

from __future__ import annotations


def encodable(text: str) -> str:
    """The text with each half of a surrogate pair, which JSON can carry and UTF-8 cannot, as a ``?``."""
    return text.encode("utf-8", "replace").decode("utf-8")
