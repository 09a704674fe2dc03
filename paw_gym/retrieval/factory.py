"""Retrievers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from paw_gym.internals.constructors import parameters_in
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.registry import Registry
from paw_gym.retrieval.base import Retriever

RETRIEVERS: Registry[Callable[..., Retriever]] = Registry("retriever", "paw_gym.retrievers")
"""what makes a retriever, by name: a class or a function; add yours with ``RETRIEVERS.register``"""

_ADDRESS = ("http://", "https://")


def retriever_names() -> list[str]:
    """The names that ``make_retriever`` knows, apart from addresses."""
    return RETRIEVERS.names()


def require_retriever(name: str) -> None:
    """Raises ``ValueError`` for a name that is neither a retriever's nor an address; names the nearest."""
    if name not in RETRIEVERS and not name.startswith(_ADDRESS):
        raise ValueError(
            f"There is no retriever {name!r}. {did_you_mean(name, retriever_names())} "
            "The address of a retrieval server begins with http:// or https://."
        )


def needs_corpus(name: str) -> bool:
    """Says if a retriever searches a corpus of its own; a server and a language model bring theirs."""
    return name in RETRIEVERS and "corpus" in parameters_in(RETRIEVERS[name])


def make_retriever(name: str | Retriever, **settings: Any) -> Retriever:
    """A retriever by name.

    Args:
        name: one of ``retriever_names()``, the address of a retrieval server (``http://...``), or a
            retriever, which is returned as it is.
        settings: its arguments, such as ``corpus`` (see the class of that name).

    Raises:
        ValueError: an unknown name or setting; names the nearest.
    """
    if not isinstance(name, str):
        if settings:
            raise ValueError(
                f"A retriever was given as an object, so {sorted(settings)} go nowhere."
            )
        return name
    require_retriever(name)
    if name.startswith(_ADDRESS):
        name, settings = "remote", {"url": name, **settings}
    make = RETRIEVERS[name]
    parameters = parameters_in(make)
    for key in settings:
        if key not in parameters:
            raise ValueError(
                f"The retriever {name!r} has no setting {key!r}. {did_you_mean(key, parameters)}"
            )
    required = [k for k, p in parameters.items() if p.default is inspect.Parameter.empty]
    missing = [key for key in required if key not in settings]
    if missing:
        raise ValueError(f"The retriever {name!r} needs {' and '.join(missing)}.")
    return make(**settings)
