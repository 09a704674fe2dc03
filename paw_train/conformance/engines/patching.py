"""An attribute replaced for as long as a context is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """The attribute of a module or class is another one while the context is open.

    Raises:
        KeyError: the module or class has no attribute of its own of that name.
    """
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
