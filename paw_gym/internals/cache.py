"""The folder for what can be rebuilt, such as indices of data on disk; other users cannot read it.

It also keeps the tokens of the servers that this user has started, so their clients need not be told them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from paw_gym.internals.files import user_path


def cache_dir() -> Path:
    """``$PAW_CACHE_DIR``, or ``paw-gym`` in the user's cache folder. It need not exist yet."""
    chosen = os.environ.get("PAW_CACHE_DIR")
    if chosen:
        return user_path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "paw-gym"


def private_folder(name: str) -> Path:
    """A folder in ``cache_dir()`` that this user alone can enter, made if that is possible."""
    folder = cache_dir() / name
    with suppress(OSError):  # a later write to it reports this; what is there can be read
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    return folder


def private_file(path: Path) -> Path:
    """Makes a file that this user alone can read, or restricts an existing file in this way."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        path.chmod(0o600)
    finally:
        os.close(descriptor)
    return path


def kept_path(url: str, suffix: str = "token") -> Path:
    """The file that keeps something of the server at an address, for as long as it runs."""
    parts = urlsplit(url)
    return private_folder("servers") / f"{parts.hostname}-{parts.port}.{suffix}".replace(":", "_")


def own_token(url: str) -> str | None:
    """The token of this user's server at exactly this address; ``None``: there is none.

    ``localhost`` is not ``127.0.0.1``: somebody else may listen at another address of ``localhost``.
    """
    try:
        return kept_path(url).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@contextmanager
def kept(path: Path, text: str) -> Iterator[None]:
    """Keeps a text where this user alone can read it, until the block ends."""
    private_file(path).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
