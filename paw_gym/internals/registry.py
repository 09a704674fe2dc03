"""Named things that other packages can add to: retrievers, exporters, advantage estimators, losses, panels.

An entry is added by a decorator in a module that is imported anyway (``import_modules`` imports those of a
folder), or by an entry point of an installed package, which is loaded when somebody asks for its name:

```toml
[project.entry-points."paw_train.advantage_estimators"]
my_estimator = "my_package.estimators:my_estimator"
```
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Generic, TypeVar

from paw_gym.internals.naming import did_you_mean

T = TypeVar("T")
V = TypeVar("V")


class Registry(Generic[T]):
    """Objects of one kind by name; other packages announce theirs in an entry-point group."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._loaded: dict[str, T] = {}

    def add(self, name: str, value: T) -> T:
        """Adds one by name and returns it."""
        known = self._loaded.get(name)
        if known is not None and known is not value and not same_place(known, value):
            raise ValueError(
                f"There is a {self.kind} {name!r} already; give this one another name."
            )
        self._loaded[name] = value
        return value

    def register(self, name: str) -> Callable[[V], V]:
        """A decorator that adds what it decorates."""

        def decorate(value: V) -> V:
            self.add(name, value)  # type: ignore[arg-type]
            return value

        return decorate

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._announced()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Every name there is, sorted; other packages are not imported for it."""
        return sorted({*self._loaded, *self._announced()})

    def get(self, name: str) -> T | None:
        """The object of a name, or ``None``."""
        return self[name] if name in self._loaded or name in self else None

    def items(self) -> list[tuple[str, T]]:
        """Every name with its object; imports all of them."""
        return [(name, self[name]) for name in self.names()]

    def __getitem__(self, name: str) -> T:
        """The object of a name."""
        if name in self._loaded:
            return self._loaded[name]
        announced = self._announced()
        if name not in announced:
            raise ValueError(
                f"There is no {self.kind} {name!r}. {did_you_mean(name, self.names())}"
            )
        point = announced[name]
        try:
            self._loaded[name] = point.load()
        except Exception as error:  # whatever another package does when it is imported
            package = point.dist.name if point.dist is not None else "a package"
            raise ImportError(
                f"The {self.kind} {point.name!r} of {package} cannot be loaded from {point.value!r} "
                f"({type(error).__name__}: {error}). Mend or uninstall that package."
            ) from error
        return self._loaded[name]

    def _announced(self) -> dict[str, metadata.EntryPoint]:
        return {point.name: point for point in metadata.entry_points(group=self.group)}


def same_place(known: object, value: object) -> bool:
    """True if a module that is executed twice (a notebook's cell, a reload) defines both."""
    places = [
        (getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (known, value)
    ]
    return places[0] == places[1] and None not in places[0]


def import_modules(package: str) -> None:
    """Imports the modules of a package's folder, so that each adds its entries to a registry."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
