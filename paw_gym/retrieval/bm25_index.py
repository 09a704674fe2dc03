"""The inverted index behind BM25: built in shards, kept as arrays that are mapped, not loaded.

A folder holds, for N passages, V terms and P postings:

``terms.npy``   [V] uint64   hash of each term, ascending
``starts.npy``  [V + 1] int64   where a term's postings begin
``passages.npy``  [P] int32   positions of passages, ascending within a term
``counts.npy``  [P] uint16   how often the term occurs there
``lengths.npy``  [N] uint8   number of terms of each passage, in Lucene's lossy one-byte code
``index.json``   the fingerprint of the corpus, and the totals

A posting takes 6 bytes. The weights of BM25 are applied when searching, so k1 and b can be changed freely.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.files import new_file, write_json
from paw_gym.retrieval.analysis import term_of, words
from paw_gym.retrieval.corpus import Corpus, text_hash
from paw_gym.retrieval.index_files import (
    DamagedIndexError,
    Progress,
    build_once,
    claim,
    mapped,
    naming_damage,
    read_meta,
    reserve,
)

FORMAT = "paw-bm25-1"
ARRAYS = ("terms", "starts", "passages", "counts", "lengths")


@dataclass(frozen=True)
class BM25Index:
    """The arrays of an index and its totals."""

    terms: np.ndarray
    starts: np.ndarray
    passages: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    corpus: str
    """fingerprint of the corpus"""
    total_terms: int
    """sum of all passage lengths, exact"""

    @property
    def size(self) -> int:
        return len(self.lengths)

    def place(self, term: str) -> int | None:
        """The number of a term in ``terms``; ``None`` for an unknown term."""
        key = np.uint64(term_hash(term))
        place = int(np.searchsorted(self.terms, key))
        return place if place < len(self.terms) and self.terms[place] == key else None

    @classmethod
    def load(cls, folder: Path, corpus: str | None = None) -> BM25Index:
        """Maps the arrays of a folder.

        Args:
            corpus: fingerprint of the corpus at hand; ``None``: not compared.
        """
        meta = read_meta(folder, FORMAT, corpus)
        arrays = {name: mapped(folder / f"{name}.npy") for name in ARRAYS}
        starts = arrays["starts"]
        postings = int(starts[-1]) if len(starts) else -1
        expected = {
            "starts": len(arrays["terms"]) + 1,
            "passages": postings,
            "counts": postings,
            "lengths": meta["passages"],
        }
        for name, length in expected.items():
            if len(arrays[name]) != length:
                reason = f"{len(arrays[name])} entries, expected {length}"
                raise DamagedIndexError(folder / f"{name}.npy", reason)
        return cls(**arrays, corpus=meta["corpus"], total_terms=meta["total_terms"])


term_hash = lru_cache(maxsize=2**16)(text_hash)


# --- building ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """The index of consecutive passages; postings ascend by (term, position)."""

    terms: np.ndarray
    frequencies: np.ndarray
    passages: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    total_terms: int


def index_shard(texts: Iterable[str], first: int) -> _Shard:
    """Indexes texts whose positions start at ``first``."""
    known: dict[str, int] = {}  # word -> number of its term, -1 for a stop word
    numbers: dict[str, int] = {}
    ids, lengths = array("i"), array("i")
    for text in texts:
        before = len(ids)
        for word in words(text):
            number = known.get(word)
            if number is None:
                term = term_of(word)
                number = -1 if term is None else numbers.setdefault(term, len(numbers))
                known[word] = number
            if number >= 0:
                ids.append(number)
        lengths.append(len(ids) - before)
    return _sorted_shard(list(numbers), np.array(ids, np.int64), np.array(lengths), first)


def _sorted_shard(terms: Sequence[str], ids: np.ndarray, lengths: np.ndarray, first: int) -> _Shard:
    hashes = np.array([term_hash(term) for term in terms], np.uint64)
    order = np.argsort(hashes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    size = max(len(lengths), 1)
    # (term, passage) as one number: sorting it sorts by both, and its repetitions are the counts
    keys = rank[ids] * size + np.repeat(np.arange(len(lengths)), lengths)
    keys, counts = np.unique(keys, return_counts=True)
    return _Shard(
        hashes[order],
        np.bincount(keys // size, minlength=len(order)).astype(np.int64),
        (keys % size + first).astype(np.int32),
        np.minimum(counts, np.iinfo(np.uint16).max).astype(np.uint16),
        encode_lengths(lengths),
        int(lengths.sum()),
    )


def build_index(
    corpus: Corpus,
    folder: Path | None = None,
    shard_size: int = 200_000,
    workers: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> BM25Index:
    """Indexes a corpus: in memory, or in a folder, shard by shard.

    A build that was interrupted goes on with the shards that are missing.

    Args:
        folder: where the index goes; ``None``: it is kept in memory.
        shard_size: passages indexed at a time; each takes about 1 kB of memory meanwhile.
        workers: processes that index shards side by side (with a folder).

    Raises:
        IndexMismatchError: the folder holds an index, or shards, of another corpus.
        ValueError: another process is building there.
        OSError: the disk is full.
    """
    if shard_size < 1:
        raise ValueError(
            f"shard_size is how many passages a shard has: 1 or more, got {shard_size}."
        )
    bounds = [(a, min(a + shard_size, len(corpus))) for a in range(0, len(corpus), shard_size)]
    if folder is None:
        shards = []
        for start, end in bounds:
            shards.append(index_shard(_texts(corpus, start, end), start))
            progress("indexing", end, len(corpus))
        return _merge(shards, corpus.fingerprint, None)
    build_once(folder, lambda: _build(corpus, folder, bounds, shard_size, workers, progress))
    return BM25Index.load(folder, corpus.fingerprint)


def _build(
    corpus: Corpus,
    folder: Path,
    bounds: Sequence[tuple[int, int]],
    shard_size: int,
    workers: int,
    progress: Progress,
) -> None:
    """Builds the index of ``build_index`` in its folder, ``index.json`` last of all."""
    parts = folder / "shards"
    mine = {"format": FORMAT, "corpus": corpus.fingerprint, "shard_size": shard_size}
    claim(parts / "of.json", mine)
    missing = [bound for bound in bounds if not _shard_path(parts, bound[0]).is_file()]
    done = len(corpus) - sum(end - start for start, end in missing)
    progress("indexing", done, len(corpus))
    for start, end in _index_missing(corpus, parts, missing, workers):
        done += end - start
        progress("indexing", done, len(corpus))
    progress("merging", 0, 1)
    index = _merge([_load_shard(parts, start) for start, _ in bounds], corpus.fingerprint, folder)
    totals = {"passages": index.size, "total_terms": index.total_terms}
    write_json(folder / "index.json", {"format": FORMAT, "corpus": index.corpus, **totals})
    for path in parts.iterdir():
        path.unlink()
    parts.rmdir()
    progress("merging", 1, 1)


def _texts(corpus: Corpus, start: int, end: int) -> Iterator[str]:
    return (corpus[i].contents for i in range(start, end))


def _shard_path(parts: Path, start: int) -> Path:
    return parts / f"{start:012d}.npz"


def _index_missing(
    corpus: Corpus, parts: Path, missing: Sequence[tuple[int, int]], workers: int
) -> Iterable[tuple[int, int]]:
    if workers <= 1 or len(missing) <= 1:
        for start, end in missing:
            _save_shard(corpus, parts, start, end)
            yield start, end
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # forking a process with threads can hang
    with ProcessPoolExecutor(min(workers, len(missing)), context) as pool:
        tasks = [pool.submit(_save_shard, corpus, parts, start, end) for start, end in missing]
        for task, bound in zip(tasks, missing, strict=True):
            task.result()
            yield bound


def _save_shard(corpus: Corpus, parts: Path, start: int, end: int) -> None:
    shard = index_shard(_texts(corpus, start, end), start)
    with new_file(_shard_path(parts, start)) as scratch, scratch.open("wb") as file:
        np.savez(file, **asdict(shard))


def _load_shard(parts: Path, start: int) -> _Shard:
    path = _shard_path(parts, start)
    with naming_damage(path), np.load(path) as stored:
        values = {name: stored[name] for name in stored.files}
        return _Shard(**{**values, "total_terms": int(values["total_terms"])})


def _merge(shards: Sequence[_Shard], fingerprint: str, folder: Path | None) -> BM25Index:
    """Joins shards: a term's postings are those of the shards, one after the other.

    Shards hold consecutive passages, so appending them keeps a term's positions ascending, which the
    compiled ranking relies on. Nothing is sorted: each posting's target is computed, in one
    vectorised pass per shard, and the posting is written straight into the mapped file.
    """
    terms = np.unique(np.concatenate([shard.terms for shard in shards]))
    places = [np.searchsorted(terms, shard.terms) for shard in shards]
    frequencies = np.zeros(len(terms), np.int64)
    for shard, place in zip(shards, places, strict=True):
        frequencies[place] += shard.frequencies
    starts = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)
    passages = _new_array(folder, "passages", int(starts[-1]), np.int32)
    counts = _new_array(folder, "counts", int(starts[-1]), np.uint16)
    free = starts[:-1].copy()  # for each term, the first place that no shard has filled yet
    for shard, place in zip(shards, places, strict=True):
        # where each term's postings begin in the shard; they move as a block, by one shift per term
        own = np.cumsum(shard.frequencies) - shard.frequencies
        shift = np.repeat(free[place] - own, shard.frequencies)
        target = np.arange(len(shift)) + shift
        passages[target], counts[target] = shard.passages, shard.counts
        free[place] += shard.frequencies
    lengths = np.concatenate([shard.lengths for shard in shards])
    if folder is not None:
        for name, values in (("terms", terms), ("starts", starts), ("lengths", lengths)):
            np.save(folder / f"{name}.npy", values)
        if len(passages):  # passages of stop words alone have no postings, and nothing is mapped
            passages.flush(), counts.flush()
    total = sum(shard.total_terms for shard in shards)
    return BM25Index(terms, starts, passages, counts, lengths, fingerprint, total)


def _new_array(folder: Path | None, name: str, size: int, kind: Any) -> Any:
    if folder is None or size == 0:
        values = np.zeros(size, kind)
        if folder is not None:
            np.save(folder / f"{name}.npy", values)
        return values
    path = folder / f"{name}.npy"
    values = np.lib.format.open_memmap(path, "w+", kind, (size,))
    reserve(path)
    return values


# --- Lucene's one-byte code of passage lengths (SmallFloat.intToByte4) -----------------------------

_EXACT = 24
"""lengths below this are stored exactly"""


def encode_lengths(lengths: np.ndarray) -> np.ndarray:
    """Lengths [N] to bytes: exact up to 40, then three mantissa bits and an exponent."""
    return (np.searchsorted(decoded_lengths(), lengths, side="right") - 1).astype(np.uint8)


@lru_cache(maxsize=1)
def decoded_lengths() -> np.ndarray:
    """The length that each of the 256 codes stands for, ascending [256] int64."""
    return np.array(
        [code if code < _EXACT else _EXACT + _wide(code - _EXACT) for code in range(256)]
    )


def _wide(code: int) -> int:
    """The value of a four-bit float: three mantissa bits (with a hidden one) and an exponent."""
    mantissa, exponent = code & 7, (code >> 3) - 1
    return mantissa if exponent < 0 else (mantissa | 8) << exponent
