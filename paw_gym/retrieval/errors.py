"""Errors of indices on disk and of optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType


class IndexMismatchError(ValueError):
    """An index does not belong to the corpus, the model or the settings at hand."""


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
