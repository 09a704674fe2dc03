"""A lock on a run that outlives the process which took it, as long as a child holds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def _flock_module() -> Any:
    try:
        import fcntl
    except ImportError:  # Windows: there, killing the parent alone is not protected against
        return None
    return fcntl


_fcntl = _flock_module()


class RunLock:
    """A lock that a child process inherits and holds until it ends, whatever becomes of its parent.

    Args:
        path: the lock file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

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
        return True

    def close(self) -> None:
        """Releases this process's share of the lock; a child that inherited it still holds it."""
        os.close(self._file)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    if not path.exists():
        return False
    lock = RunLock(path)
    try:
        return not lock.take()
    finally:
        lock.close()
