"""Locks that keep two processes from one run, and end with the processes that hold them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
"""locks of files; ``None`` on Windows, where nothing is protected"""

_WORKING = (
    "Another process is working in {folder}. Wait for it or stop it, or take another folder (paw train: "
    "name=...; paw eval: --out)."
)


class ProcessLock:
    """A lock that a child process inherits and holds until it ends, whatever becomes of its parent."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        self._file = os.open(path, flags, 0o644)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that the child has to inherit."""
        return () if _fcntl is None else (self._file,)

    def take(self) -> bool:
        """Takes the lock; False when another process holds it."""
        if _fcntl is None:
            return True
        try:
            _fcntl.flock(self._file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a network file system may have no locks, or none for folders: better to run without
        return True

    def close(self) -> None:
        """Releases this process's share of the lock; a child that inherited it still holds it."""
        os.close(self._file)


def is_held(path: Path) -> bool:
    """True if a process holds the lock."""
    if not path.exists():
        return False
    lock = ProcessLock(path)
    try:
        return not lock.take()
    finally:
        lock.close()


def require_idle(folder: Path) -> None:
    """Raises ``ValueError`` while another process works in a folder; see ``only_process``."""
    if is_held(folder):
        raise ValueError(_WORKING.format(folder=folder))


@contextmanager
def only_process(folder: Path, otherwise: str = _WORKING) -> Iterator[None]:
    """Reserves a folder for this process and makes it if need be; an empty one does not stay.

    Raises:
        ValueError: another process has it; says ``otherwise``, with ``{folder}`` filled in.
    """
    absent = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(folder)
    try:
        if not lock.take():
            raise ValueError(otherwise.format(folder=folder))
        yield
    finally:
        lock.close()
        for place in absent:
            with suppress(OSError):  # if a folder holds something
                place.rmdir()
