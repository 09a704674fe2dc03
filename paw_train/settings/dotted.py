"""Nested values by dotted key, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ARGUMENTS = ("kwargs",)
"""endings of the names of settings that hold arguments: one value, not a group of settings"""


def flatten(
    values: Mapping[str, Any], leaves: tuple[str, ...] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested settings; an empty group is a value.

    Args:
        values: by name.
        leaves: endings of dotted keys whose values are not flattened, such as ``ARGUMENTS``.
        prefix: put before each key.
    """
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not name.endswith(leaves):
            yield from flatten(value, leaves, f"{name}.")
        else:
            yield name, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings from dotted keys, the inverse of ``flatten``."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
