"""The vectors of a corpus on disk: made in shards, so that hours of encoding survive an interruption.

``vectors/<start>.npy`` holds [n, dim] codes, with ``<start>.scale.npy`` [n] float32 beside it for int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from paw_gym.internals.files import new_file
from paw_gym.internals.naming import require_choice
from paw_gym.retrieval.corpus import Corpus
from paw_gym.retrieval.encoders import Encoder
from paw_gym.retrieval.index_files import Progress, claim

STORAGES = ("float32", "float16", "int8")
FORMAT = "paw-vectors-1"


@dataclass(frozen=True)
class VectorStore:
    """The finished vectors of a corpus, mapped into memory.

    Args:
        bounds: first position of each shard, and the end.
    """

    folder: Path
    bounds: tuple[int, ...]
    dim: int
    storage: str

    def __len__(self) -> int:
        return self.bounds[-1]

    def shards(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first position, [n, dim] float32) of one shard at a time."""
        for start in self.bounds[:-1]:
            codes, scales = self._open(start)
            yield start, _decode(np.asarray(codes), scales)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """The vectors at some positions [n] as [n, dim] float32; only these are read."""
        result = np.empty((len(positions), self.dim), np.float32)
        which = np.searchsorted(self.bounds, positions, side="right") - 1
        for shard in np.unique(which):
            mine = which == shard
            codes, scales = self._open(self.bounds[shard])
            local = positions[mine] - self.bounds[shard]
            result[mine] = _decode(codes[local], None if scales is None else scales[local])
        return result

    def _open(self, start: int) -> tuple[np.ndarray, np.ndarray | None]:
        codes = np.load(_path(self.folder, start), mmap_mode="r")
        if self.storage != "int8":
            return codes, None
        return codes, np.load(_path(self.folder, start, ".scale"), mmap_mode="r")


def encode_vectors(vectors: np.ndarray, storage: str) -> tuple[np.ndarray, np.ndarray | None]:
    """[n, dim] float32 as codes, and for int8 the scale of each vector."""
    if storage != "int8":
        return vectors.astype(storage), None
    scales = np.abs(vectors).max(axis=1) / 127
    scales = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def _decode(codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    vectors = codes.astype(np.float32)
    return vectors if scales is None else vectors * np.asarray(scales)[:, None]


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    folder: Path,
    storage: str = "float16",
    shard_size: int = 20_000,
    batch_size: int = 256,
    progress: Progress = lambda what, done, total: None,
) -> VectorStore:
    """Encodes a corpus, shard by shard; what is there already is kept.

    Args:
        storage: ``float32``, ``float16`` or ``int8``: 4, 2 or 1 byte a number.
        shard_size: passages of one file; an interruption loses less than one.
        batch_size: passages given to the encoder at a time.

    Raises:
        ValueError: unknown storage, or a size below 1.
        IndexMismatchError: the folder holds vectors of another corpus, model or form.
    """
    require_choice("storage", storage, STORAGES)
    if shard_size < 1 or batch_size < 1:
        raise ValueError(
            f"shard_size and batch_size are 1 or more, got {shard_size}, {batch_size}."
        )
    mine = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "model": encoder.fingerprint,
        "dim": encoder.dim,
        "storage": storage,
        "shard_size": shard_size,
    }
    claim(folder / "vectors.json", mine)
    bounds = (*range(0, len(corpus), shard_size), len(corpus))
    for start, end in pairwise(bounds):
        if not _path(folder, start).is_file():
            _write_shard(corpus, encoder, folder, storage, (start, end), batch_size, progress)
        progress("encoding", end, len(corpus))
    return VectorStore(folder, bounds, encoder.dim, storage)


def _path(folder: Path, start: int, kind: str = "") -> Path:
    return folder / f"{start:012d}{kind}.npy"


def _write_shard(
    corpus: Corpus,
    encoder: Encoder,
    folder: Path,
    storage: str,
    bound: tuple[int, int],
    batch_size: int,
    progress: Progress,
) -> None:
    start, end = bound
    parts = []
    for first in range(start, end, batch_size):
        last = min(first + batch_size, end)
        parts.append(encoder.encode_passages([corpus[i].contents for i in range(first, last)]))
        progress("encoding", last, len(corpus))
    codes, scales = encode_vectors(np.concatenate(parts), storage)
    if scales is not None:
        np.save(_path(folder, start, ".scale"), scales)
    with new_file(_path(folder, start)) as scratch, scratch.open("wb") as file:
        np.save(file, codes)
