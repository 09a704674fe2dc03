"""A corpus of passages: JSON lines on disk, read in place, or a list in memory.

Each line is ``{"id": ..., "contents": "\\"Title\\"\\ntext"}``; ``title`` and ``text`` may stand in place of
``contents``. A file is scanned once; afterwards a passage costs one read at a known offset, so a corpus
of any size takes 16 bytes of mapped memory per passage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals import files
from paw_gym.retrieval.base import CheckedRetriever, Contexts, Hit, Passage, settings_digest

_log = logging.getLogger(__name__)
_CACHED_FROM = 32 * 2**20
"""bytes; the scan of a smaller file is not worth remembering"""


class CorpusError(ValueError):
    """A corpus is malformed; the message names the file and the line."""


class Corpus(Sequence[Passage]):
    """Passages in a fixed order."""

    def __init__(self, passages: Sequence[Passage] | _Lines, fingerprint: str, source: str) -> None:
        self._passages = passages
        self.fingerprint, self.source = fingerprint, source

    @classmethod
    def open(cls, source: CorpusSource) -> Corpus:
        """A corpus from the path of a ``.jsonl`` file, or from passages in memory.

        Args:
            source: a path; or passages as ``Passage``, mappings, or ``(id, contents)`` pairs.

        Raises:
            FileNotFoundError: no such file.
            CorpusError: a malformed line, a repeated id, or no passage at all.
        """
        if isinstance(source, Corpus):
            return source
        if isinstance(source, str | os.PathLike):
            return _open_file(files.user_path(source))
        return _in_memory(source)

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(f"Passage {position} of {len(self)}.")
        return self._passages[int(position) % len(self)]


CorpusSource = str | os.PathLike[str] | Corpus | Iterable[Any]
"""what a corpus can be made from"""

Ranked = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]
"""positions [k] in the corpus and scores [k], best first, ties by position"""


class CorpusRetriever(CheckedRetriever):
    """Base of the retrievers that rank the passages of their own corpus. A subclass sets ``corpus`` and
    ``_settings``, and implements ``rank``, or ``_search`` if it answers several queries together."""

    corpus: Corpus
    _settings: Mapping[str, Any]
    """what decides the results, the corpus included"""

    @property
    def fingerprint(self) -> str:
        return settings_digest(self._settings)

    def rank(self, query: str, top_k: int) -> Ranked:
        """The best passages of one query."""
        raise NotImplementedError

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        return [self._hits(*self.rank(query, top_k)) for query in queries]

    def _hits(self, positions: Iterable[int], scores: Iterable[float]) -> list[Hit]:
        found = zip(positions, scores, strict=True)
        passages = ((self.corpus[int(position)], score) for position, score in found)
        return [Hit(p.id, p.contents, float(score)) for p, score in passages]


def parse_passage(record: Any) -> Passage:
    """A passage from a JSON value or a pair.

    Raises:
        ValueError: it is none; the message states why.
    """
    if isinstance(record, Passage):
        return record
    if isinstance(record, tuple | list) and len(record) == 2:
        record = {"id": record[0], "contents": record[1]}
    if not isinstance(record, Mapping):
        raise ValueError(f"a passage is an object, got {type(record).__name__}")
    if "id" not in record:
        raise ValueError("the key 'id' is missing")
    contents, title = record.get("contents"), record.get("title")
    if contents is None and isinstance(record.get("text"), str):
        if title is not None and not _is_plain(title):
            raise ValueError(f"the title is neither a string nor a whole number: {title!r:.40}")
        contents = record["text"] if title in (None, "") else f'"{title}"\n{record["text"]}'
    if not isinstance(contents, str) or not contents.strip():
        raise ValueError("the key 'contents' (or 'text') is missing, empty or no string")
    if not _is_plain(record["id"]):
        raise ValueError(f"the id is neither a string nor a whole number: {record['id']!r:.40}")
    return Passage(str(record["id"]), contents)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or type(value) is int


def _in_memory(records: Iterable[Any]) -> Corpus:
    passages = []
    for number, record in enumerate(records):
        try:
            passages.append(parse_passage(record))
        except ValueError as error:
            raise CorpusError(f"Passage {number} of the list: {error}.") from error
    hashes = np.array([text_hash(p.id) for p in passages], np.uint64)
    _require_usable(hashes, np.arange(1, len(passages) + 1), "the list of passages")
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(json.dumps([passage.id, passage.contents]).encode())
    return Corpus(passages, digest.hexdigest(), "passages in memory")


class _Lines:
    """Reads passages at known offsets; ``pread`` needs no position, so threads and forks can share it.

    Raises:
        CorpusError: when a passage is read from a file that was changed since.
    """

    def __init__(self, path: Path, offsets: np.ndarray, version: tuple[int, int]) -> None:
        self.path = path
        self.offsets = offsets
        self.version = version
        self._file = os.open(path, os.O_RDONLY)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lines, (self.path, self.offsets, self.version)

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, position: int) -> Passage:
        if _version(os.fstat(self._file)) != self.version:
            # the offsets, and an index over the old text, would give wrong passages silently
            raise CorpusError(f"{self.path} was changed while it was in use: open it anew.")
        start, end = self.offsets[position].tolist()
        line = os.pread(self._file, end - start, start)
        return parse_passage(json.loads(line))

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def _version(stat: os.stat_result) -> tuple[int, int]:
    """Size in bytes and time of a file: a change since its scan shows in them."""
    return stat.st_size, stat.st_mtime_ns


def _open_file(path: Path) -> Corpus:
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no corpus file {path}. It is a .jsonl file with one "
            '{"id": ..., "contents": "..."} a line.'
        )
    head = files.require_data(path)
    if files.packed_by(head) or head.startswith((b"PAR1", b"PK\x03\x04", b"BZh")):
        raise CorpusError(
            f"{path} is compressed or Parquet: unpack it to JSON lines, so that passages can be read "
            "in place."
        )
    version = _version(path.stat())  # before the scan: a change during it counts
    scan = _scan if version[0] < _CACHED_FROM else _remembered_scan
    offsets, fingerprint = scan(path)
    return Corpus(_Lines(path, offsets, version), fingerprint, str(path))


def _scan(path: Path) -> tuple[np.ndarray, str]:
    """Offsets [N, 2] of the lines, and the fingerprint of the file."""
    digest = hashlib.sha256()
    offsets, hashes, numbers = array("q"), array("Q"), array("q")  # 8 bytes per entry
    position = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            start, position = position, position + len(line)
            if not line.strip():
                continue
            try:
                passage = parse_passage(json.loads(line))
            except (ValueError, RecursionError) as error:
                unread = isinstance(
                    error, json.JSONDecodeError | UnicodeDecodeError | RecursionError
                )
                reason = "not valid JSON" if unread else error
                raise CorpusError(f"{path}, line {number}: {reason}. Mend or remove it.") from error
            offsets.extend((start, position))
            hashes.append(text_hash(passage.id))
            numbers.append(number)
    _require_usable(np.array(hashes, np.uint64), np.array(numbers), str(path))
    return np.array(offsets, np.int64).reshape(-1, 2), digest.hexdigest()


def text_hash(text: str) -> int:
    """The 64-bit name of a text."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _require_usable(hashes: np.ndarray, numbers: np.ndarray, source: str) -> None:
    if len(hashes) == 0:
        raise CorpusError(f"{source} holds no passage.")
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(same):
        first, second = numbers[order[same[0]]], numbers[order[same[0] + 1]]
        raise CorpusError(
            f"{source}: lines {first} and {second} have the same id; ids must be unique."
        )


def _remembered_scan(path: Path) -> tuple[np.ndarray, str]:
    """As ``_scan``, kept for the next process, if there is room."""
    name = hashlib.sha256(files.file_version(path).encode()).hexdigest()[:24]
    folder = files.private_folder("corpus-scans") / name
    for kept in folder.glob("*.npy"):
        try:
            return np.asarray(np.load(kept, mmap_mode="r")), kept.stem
        except (OSError, ValueError, EOFError) as error:
            _log.warning("The scan in %s is damaged, and made anew: %s", kept, error)
    offsets, fingerprint = _scan(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{fingerprint}.npy"
        with files.new_file(kept, shared=True) as scratch, scratch.open("wb") as file:
            np.save(file, offsets)
    except OSError as error:
        _log.warning("Cannot remember the scan of the corpus in %s: %s", folder, error)
    return offsets, fingerprint
