"""The inverted index behind BM25: built in shards, kept as arrays that are mapped, not loaded.

A folder holds, for N passages, V terms and P postings:

``terms.npy``   [V] uint64   hash of each term, ascending
``starts.npy``  [V + 1] int64   where a term's postings begin
``passages.npy``  [P] int32   positions of passages, ascending within a term
``counts.npy``  [P] uint16   how often the term occurs there
``lengths.npy``  [N] uint8   number of terms of each passage, in Lucene's lossy one-byte code
``index.json``   the fingerprint of the corpus, and the totals

A posting takes 6 bytes. The weights of BM25 are applied when searching, so k1 and b can be changed freely.
A shard is an index of consecutive passages, kept until all of them can be merged.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from paw_gym.internals.files import write_json
from paw_gym.retrieval import index_files
from paw_gym.retrieval.analysis import term_of, words
from paw_gym.retrieval.corpus import Corpus, text_hash

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
        meta = index_files.read_meta(folder, FORMAT, corpus)
        arrays = {name: index_files.mapped(folder / f"{name}.npy") for name in ARRAYS}
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
                raise index_files.DamagedIndexError(folder / f"{name}.npy", reason)
        return cls(**arrays, corpus=meta["corpus"], total_terms=meta["total_terms"])

    def save(self, folder: Path) -> None:
        """Writes the arrays, and ``index.json`` last of all."""
        for name in ARRAYS:
            index_files.write_array(folder / f"{name}.npy", getattr(self, name))
        totals = {"passages": self.size, "total_terms": self.total_terms}
        write_json(folder / "index.json", {"format": FORMAT, "corpus": self.corpus, **totals})


term_hash = lru_cache(maxsize=2**16)(text_hash)


# --- building ------------------------------------------------------------------------------------


def _index(corpus: Corpus, first: int, end: int) -> BM25Index:
    """The index of the passages from ``first`` to ``end``."""
    known: dict[str, int] = {}  # word -> number of its term, -1 for a stop word
    numbers: dict[str, int] = {}
    ids, ends = array("i"), array("q")
    for position in range(first, end):
        for word in words(corpus[position].contents):
            number = known.get(word)
            if number is None:
                term = term_of(word)
                number = -1 if term is None else numbers.setdefault(term, len(numbers))
                known[word] = number
            if number >= 0:
                ids.append(number)
        ends.append(len(ids))
    lengths = np.diff(np.array(ends), prepend=0)
    hashes = np.array([term_hash(term) for term in numbers], np.uint64)
    order = np.argsort(hashes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    size = max(len(lengths), 1)
    # (term, passage) as one number: sorting it sorts by both, and its repetitions are the counts
    keys = rank[np.array(ids, np.int64)] * size + np.repeat(np.arange(len(lengths)), lengths)
    keys, counts = np.unique(keys, return_counts=True)
    return BM25Index(
        hashes[order],
        _starts(np.bincount(keys // size, minlength=len(order))),
        (keys % size + first).astype(np.int32),
        np.minimum(counts, np.iinfo(np.uint16).max).astype(np.uint16),
        encode_lengths(lengths),
        corpus.fingerprint,
        len(ids),
    )


def _starts(frequencies: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)


def build_index(
    corpus: Corpus,
    folder: Path | None = None,
    shard_size: int = 200_000,
    workers: int = 1,
    progress: index_files.Progress = lambda what, done, total: None,
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
    size = len(corpus)
    bounds = [(first, min(first + shard_size, size)) for first in range(0, size, shard_size)]
    if folder is None:
        return _merge([_index(corpus, *bound) for bound in bounds])

    parts = folder / "shards"

    def build() -> None:
        form = {"format": FORMAT, "corpus": corpus.fingerprint, "shard_size": shard_size}
        index_files.claim(parts / "of.json", form)
        shards = {parts / f"{first:012d}": (first, end) for first, end in bounds}
        missing = {at: b for at, b in shards.items() if not (at / "index.json").is_file()}
        done = size - sum(end - first for first, end in missing.values())
        progress("indexing", done, size)
        for count in _index_missing(corpus, missing, workers):
            done += count
            progress("indexing", done, size)
        progress("merging", 0, 1)
        _merge([BM25Index.load(at) for at in shards]).save(folder)
        progress("merging", 1, 1)

    index_files.build_once(folder, build)
    shutil.rmtree(parts, ignore_errors=True)  # left by a build that was killed as it ended
    return BM25Index.load(folder, corpus.fingerprint)


def _index_missing(
    corpus: Corpus, missing: Mapping[Path, tuple[int, int]], workers: int
) -> Iterator[int]:
    """Saves the shards that are missing; yields how many passages each has."""
    tasks = [(corpus, at, *bound) for at, bound in missing.items()]
    if workers <= 1 or len(tasks) <= 1:
        yield from starmap(_save_shard, tasks)
        return
    context = get_context("spawn")  # forking a process with threads can hang
    with ProcessPoolExecutor(min(workers, len(tasks)), context) as pool:
        yield from pool.map(_save_shard, *zip(*tasks, strict=True))


def _save_shard(corpus: Corpus, folder: Path, first: int, end: int) -> int:
    folder.mkdir(exist_ok=True)
    _index(corpus, first, end).save(folder)
    return end - first


def _merge(shards: Sequence[BM25Index]) -> BM25Index:
    """Joins shards. They hold consecutive passages, so appending a term's postings keeps its positions
    ascending, on which the compiled ranking relies. Nothing is sorted: each posting's target is computed, in
    one vectorised pass per shard."""
    terms = np.unique(np.concatenate([shard.terms for shard in shards]))
    places = [np.searchsorted(terms, shard.terms) for shard in shards]
    frequencies = np.zeros(len(terms), np.int64)
    for shard, place in zip(shards, places, strict=True):
        frequencies[place] += np.diff(shard.starts)
    starts = _starts(frequencies)
    passages, counts = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint16)
    free = starts[:-1].copy()  # for each term, the first place that no shard has filled yet
    for shard, place in zip(shards, places, strict=True):
        # a term's postings move as a block, by one shift
        own = np.diff(shard.starts)
        shift = np.repeat(free[place] - shard.starts[:-1], own)
        target = np.arange(len(shift)) + shift
        passages[target], counts[target] = shard.passages, shard.counts
        free[place] += own
    lengths = np.concatenate([shard.lengths for shard in shards])
    total = sum(shard.total_terms for shard in shards)
    return BM25Index(terms, starts, passages, counts, lengths, shards[0].corpus, total)


# --- Lucene's one-byte code of passage lengths (SmallFloat.intToByte4) -----------------------------

_EXACT = 24
"""lengths below this are stored exactly"""


def encode_lengths(lengths: np.ndarray) -> np.ndarray:
    """Lengths [N] to bytes: exact up to 40, then three mantissa bits and an exponent."""
    return (np.searchsorted(decoded_lengths(), lengths, side="right") - 1).astype(np.uint8)


@lru_cache(maxsize=1)
def decoded_lengths() -> np.ndarray:
    """The length that each of the 256 codes stands for, ascending [256] int64."""
    codes = np.arange(256 - _EXACT)
    mantissa, exponent = codes & 7, (codes >> 3) - 1
    wide = np.where(exponent < 0, mantissa, (mantissa | 8) << np.maximum(exponent, 0))
    return np.concatenate([np.arange(_EXACT), _EXACT + wide])
