"""Errors of indices on disk and of optional packages."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


class IndexMismatchError(ValueError):
    """An index does not belong to the corpus, the model or the settings at hand."""


class DamagedIndexError(ValueError):
    """A file of an index is missing, cut off or unreadable.

    Args:
        path: the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"{path} is missing or damaged ({reason}). Copy the whole index again, or delete "
            f"{path.parent} and build it anew."
        )


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports an optional module.

    Raises:
        ImportError: it is not installed; states which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed: "
            f"pip install '.[{extra}]' in your clone of PaW-Gym",
            name=module,
        ) from error
