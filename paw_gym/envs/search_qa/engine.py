"""The search engine behind environments: found or made once a process, then shared."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paw_gym.files import file_version
from paw_gym.retrieval.base import Retriever
from paw_gym.retrieval.corpus import Corpus
from paw_gym.retrieval.factory import make_retriever, needs_corpus

_SHARED: dict[str, Retriever] = {}
"""by name, corpus and settings; 128 environments must not hold 128 indices"""
_LOCK = threading.Lock()


def find_corpus(data_dir: Path, datasets: Sequence[str], corpus: str | Path | None) -> Path:
    """The corpus file: as given, or ``corpus.jsonl`` beside the questions, or above them.

    Raises:
        FileNotFoundError: there is none; states where it is looked for.
    """
    if corpus is not None:
        return Path(corpus).expanduser()
    folders = [data_dir / datasets[0]] if len(datasets) == 1 else []
    for folder in (*folders, data_dir):
        if (folder / "corpus.jsonl").is_file():
            return folder / "corpus.jsonl"
    raise FileNotFoundError(
        f"There is no corpus.jsonl in {data_dir}: put the passages to search there, or give "
        "corpus=PATH, or the address of a retrieval server as the retriever."
    )


def shared_retriever(
    retriever: str | Retriever,
    corpus: Callable[[], Path | Corpus],
    settings: Mapping[str, Any] | None = None,
) -> Retriever:
    """The retriever of that name over that corpus, made when it is first asked for.

    Args:
        retriever: a name or an address; an object is returned as it is.
        corpus: finds the corpus; called only if this retriever needs one.
        settings: more arguments for ``make_retriever``.
    """
    if not isinstance(retriever, str):
        return make_retriever(retriever)
    chosen = dict(settings or {})
    if needs_corpus(retriever) and "corpus" not in chosen:
        chosen["corpus"] = corpus()
    key = repr([retriever, sorted((name, _identity(value)) for name, value in chosen.items())])
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = make_retriever(retriever, **chosen)
        return _SHARED[key]


def _identity(value: Any) -> str:
    """The identity of a setting's value; a file or an index counts as another one once it was changed."""
    if isinstance(value, Corpus):
        return value.fingerprint
    file = _file_of(value) if isinstance(value, str | os.PathLike) else None
    return repr(value) if file is None else file_version(file)


def _file_of(value: str | os.PathLike[str]) -> Path | None:
    """The file that a value names, of an index its note; ``None`` for any other text, such as a token."""
    try:
        path = Path(value).expanduser()
        file = path / "index.json" if path.is_dir() else path
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long for a path, or no user of that name
        return None
