"""Filling the slots of an agent's own texts."""

from __future__ import annotations

import re

_SLOT = re.compile(r"\{([a-z_]+)\}")


def fill(text: str, **values: str) -> str:
    """Fills ``{name}`` slots in one pass: what a value contains is never taken for a slot.

    >>> fill("{a} and {b}", a="{b}", b="x")
    '{b} and x'
    """
    return _SLOT.sub(lambda m: values.get(m.group(1), m.group(0)), text)
