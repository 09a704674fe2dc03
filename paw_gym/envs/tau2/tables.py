"""A quick private copy of a database: rows are shared with the original until someone looks at them.

The airline's database has 2,800 rows in 7 MB of JSON, and an episode touches a dozen.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from contextlib import ExitStack, contextmanager
from typing import Any


class SharedTable(dict[str, Any]):
    """A dictionary of rows that belong to another one; a row that is read becomes a private copy.

    Code that bypasses a dictionary's methods (pydantic's serialiser, ``json``) sees the rows as they
    are, which is right: a shared row was never changed.
    """

    def __init__(self, rows: dict[str, Any]) -> None:
        super().__init__(rows)
        self._original = rows
        self._shared = set(rows)
        self._reading = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block that changes no row, and so needs no copies."""
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    def _own(self, key: str) -> None:
        if key in self._shared and not self._reading:
            self._shared.discard(key)
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))

    def _own_all(self) -> None:
        for key in [] if self._reading else list(self._shared):
            self._own(key)

    def changes(self) -> dict[str, str | None]:
        """The rows that differ from the original's, as JSON; ``None`` for one that is gone."""
        found: dict[str, str | None] = dict.fromkeys(self._original.keys() - self.keys())
        for key in self.keys() - self._shared:
            now = _as_json(super().__getitem__(key))
            if key not in self._original or now != _as_json(self._original[key]):
                found[key] = now
        return found

    def __iter__(self) -> Iterator[str]:
        # with an iterator of its own, copy(), | and dict() read by __getitem__, not past it
        return super().__iter__()

    def __getitem__(self, key: str) -> Any:
        self._own(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, row: Any) -> None:
        self._shared.discard(key)
        super().__setitem__(key, row)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._shared.discard(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._own(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._own(key)
        return super().pop(key, *default)

    def __ior__(self, rows: Any) -> SharedTable:  # type: ignore[override, misc]
        self.update(rows)
        return self

    # row by row, so that each is a private copy or known to be new
    setdefault = MutableMapping.setdefault
    update = MutableMapping.update
    clear = MutableMapping.clear

    def popitem(self) -> tuple[str, Any]:
        if self:
            self._own(next(reversed(self)))
        return super().popitem()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """See ``dict.values``; all rows become private copies."""
        self._own_all()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """See ``dict.items``; all rows become private copies."""
        self._own_all()
        return super().items()


def _as_json(row: Any) -> str:
    return json.dumps(row.model_dump(), sort_keys=True, default=str)


def database_hash(database: Any) -> str:
    """A hash that two databases share if and only if they hold the same.

    The package hashes all of a database, twice an episode. This looks at the rows that were touched;
    it is valid for copies of one original (``copy_database``).
    """
    parts = {
        name: value.changes()
        if isinstance(value, SharedTable)
        else database.model_dump(include={name})
        for name, value in vars(database).items()
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def copy_database(database: Any) -> Any:
    """A database (a pydantic model of tables) that can be changed without changing ``database``."""
    own = {
        name: SharedTable(value)
        if isinstance(value, dict) and all(hasattr(row, "model_dump") for row in value.values())
        else copy.deepcopy(value)
        for name, value in vars(database).items()
    }
    return database.model_copy(update=own)


@contextmanager
def reading(database: Any) -> Iterator[None]:
    """A block that changes nothing in a database: no row of its shared tables is copied for it."""
    with ExitStack() as stack:
        for table in vars(database).values():
            if isinstance(table, SharedTable):
                stack.enter_context(table.reading())
        yield
