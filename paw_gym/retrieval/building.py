"""What every build of an index does: it has the folder to itself, and room on the disk before it writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paw_gym.locks import ProcessLock


@contextmanager
def only_builder(folder: Path) -> Iterator[None]:
    """Makes the folder of an index and keeps other builds out of it; a killed process lets it go.

    Raises:
        ValueError: another process is building there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(folder)
    try:
        if not lock.take():
            raise ValueError(
                f"Another process is building the index in {folder}. Wait until it is done, or choose "
                "another folder."
            )
        yield
    finally:
        lock.close()


def reserve(path: Path) -> None:
    """Takes the room on the disk that a file of holes will need.

    Writing a mapped file on a full disk ends the process with a bus error; this fails before.

    Raises:
        OSError: there is no room.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise OSError(error.errno, error.strerror, str(path)) from error
