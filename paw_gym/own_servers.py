"""Tokens of the servers that this user has started on this machine: its clients need not be told them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from paw_gym.cache import private_file, private_folder


def kept_path(url: str, suffix: str = "token") -> Path:
    """Where something of the server at an address is kept, for as long as it runs."""
    parts = urlsplit(url)
    return private_folder("servers") / f"{parts.hostname}-{parts.port}.{suffix}".replace(":", "_")


def own_token(url: str) -> str | None:
    """The token of this user's server at exactly this address; ``None``: there is none.

    ``localhost`` is not ``127.0.0.1``: somebody else may listen at another of its addresses.
    """
    try:
        return kept_path(url).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@contextmanager
def kept(path: Path, text: str) -> Iterator[None]:
    """Keeps a text where this user alone can read it, until the block ends.

    Raises:
        OSError: it cannot be kept.
    """
    private_file(path).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
