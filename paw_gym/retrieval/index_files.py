"""The folder of an index: its note, its arrays, one build at a time, and errors that name a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from paw_gym.internals.files import naming_full_disk, write_json
from paw_gym.internals.locks import only_process

Progress = Callable[[str, int, int | None], None]
"""called with (what is being done, done so far, in all)"""


class IndexMismatchError(ValueError):
    """An index does not belong to the corpus, the model or the settings at hand."""


class DamagedIndexError(ValueError):
    """A file of an index is missing, cut off or unreadable."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"{path} is missing or damaged ({reason}). Copy the whole index again, or delete "
            f"{path.parent} and build it anew."
        )


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turns what a reader of a file raises, cut off or overwritten, into ``DamagedIndexError``."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise DamagedIndexError(path, error) from error


def mapped(path: Path) -> np.ndarray:
    """The array of a file, read when used; a plain view, because a memmap's accesses cost microseconds."""
    with naming_damage(path):
        return np.asarray(np.load(path, mmap_mode="r"))


def write_array(path: Path, values: np.ndarray) -> None:
    """Writes an array for ``mapped``, piece by piece: NumPy's own way hides that a disk is full."""
    with path.open("wb") as file:
        np.save(SimpleNamespace(write=file.write), values)


def read_meta(folder: Path, form: str, corpus: str | None) -> dict[str, Any]:
    """``index.json`` of an index folder, checked; errors as in ``BM25Index.load``."""
    path = folder / "index.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no finished index. `paw index build` makes one, and goes on with one "
            "that was interrupted."
        )
    with naming_damage(path):
        stored = json.loads(path.read_text(encoding="utf-8"))
        meta = {**stored, "corpus": str(stored["corpus"])}
    require_same(folder, meta, {"format": form} | ({} if corpus is None else {"corpus": corpus}))
    return meta


def claim(note: Path, mine: Mapping[str, Any]) -> None:
    """Writes the note of a new build, or checks that a resumed build has the same note."""
    if note.is_file():
        return require_same(note.parent, json.loads(note.read_text(encoding="utf-8")), mine)
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, dict(mine))


def require_same(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ``IndexMismatchError`` if what a folder holds differs in one of the wanted settings."""
    for key, value in wanted.items():
        if found.get(key) != value:
            raise IndexMismatchError(
                f"{folder} was built with another {key} ({found.get(key)!r:.80}; this is {value!r:.80}). "
                f"Give the same {key}, choose another folder, or delete this one to start over."
            )


def build_once(folder: Path, build: Callable[[], None]) -> None:
    """Has an index built, ``index.json`` last of all, unless it is there; keeps other builds out."""
    done = folder / "index.json"
    if done.is_file():
        return
    busy = (
        "Another process is building the index in {folder}. Wait until it is done, or choose another "
        "folder."
    )
    with only_process(folder, busy), naming_full_disk(folder):  # a killed process releases it
        if not done.is_file():  # else another process has just built it
            build()
