"""The folder for what can be rebuilt, such as indices of data on disk; other users cannot read it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def cache_dir() -> Path:
    """``$PAW_CACHE_DIR``, or ``paw-gym`` in the user's cache folder. It need not exist yet."""
    chosen = os.environ.get("PAW_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "paw-gym"


def private_folder(name: str) -> Path:
    """A folder in ``cache_dir()`` that this user alone can enter, made where that is possible."""
    folder = cache_dir() / name
    with suppress(OSError):  # whoever writes to it says so; what is there can be read
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    return folder


def private_file(path: Path) -> Path:
    """Makes a file that this user alone can read, or has one that is there be such a file.

    Raises:
        OSError: it is another user's, or a link, or its folder cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        path.chmod(0o600)
    finally:
        os.close(descriptor)
    return path
