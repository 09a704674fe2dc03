"""Vectors of a corpus on disk, and their nearest neighbours by FAISS.

Vectors are made in shards, so that hours of encoding survive an interruption: ``vectors/<start>.npy`` holds
[n, dim] codes, with ``<start>.scale.npy`` [n] float32 beside it for int8. An index is exact (flat), a graph
(HNSW), or compressed (IVF-PQ); all compare by inner product. IVF-PQ scores compressed vectors, so its best
candidates are scored again with the stored ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.constructors import need
from paw_gym.internals.files import new_file
from paw_gym.retrieval.corpus import Corpus
from paw_gym.retrieval.encoders import Encoder
from paw_gym.retrieval.index_files import DamagedIndexError, Progress, claim, mapped

KINDS = ("flat", "hnsw", "ivfpq")
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
        codes = mapped(_path(self.folder, start))
        if self.storage != "int8":
            return codes, None
        return codes, mapped(_path(self.folder, start, ".scale"))


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
    """Encodes a corpus, shard by shard; what is there already is kept."""
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


# --- the index --------------------------------------------------------------------------------------


_LINKS = 32
"""hnsw: M, links of a vector; memory grows with it"""
_BUILD_EFFORT = 200
"""hnsw: efConstruction, candidates looked at when a vector is added"""
_TRAINED_ON = 200_000
"""ivfpq: vectors that clusters and codes are learnt from, at most"""


def faiss() -> Any:
    return need("faiss", "dense", "Searching vectors")


def new_index(dim: int, count: int, kind: str, storage: str) -> Any:
    """An empty FAISS index for ``count`` vectors; it has yet to be trained.

    An IVF-PQ index has four times as many clusters as the square root of ``count``, and takes about a
    quarter of a byte for each dimension of a vector.
    """
    library = faiss()
    metric = library.METRIC_INNER_PRODUCT
    quantizers = library.ScalarQuantizer
    scalar = {"float16": quantizers.QT_fp16, "int8": quantizers.QT_8bit}.get(storage)
    if kind == "flat":
        if scalar is None:
            return library.IndexFlatIP(dim)
        return library.IndexScalarQuantizer(dim, scalar, metric)
    if kind == "hnsw":
        if scalar is None:
            index = library.IndexHNSWFlat(dim, _LINKS, metric)
        else:
            index = library.IndexHNSWSQ(dim, scalar, _LINKS, metric)
        index.hnsw.efConstruction = _BUILD_EFFORT
        return index
    trained_on = min(count, _TRAINED_ON)
    if trained_on < 2:
        raise ValueError(
            f"kind='ivfpq' learns from 2 vectors at least, got {trained_on}: use 'flat'."
        )
    lists = max(1, min(round(4 * math.sqrt(count)), trained_on // 39))
    size = next(size for size in range(max(1, dim // 4), 0, -1) if dim % size == 0)
    bits = 8 if trained_on >= 256 else max(1, int(math.log2(trained_on)))
    index = library.index_factory(dim, f"IVF{lists},PQ{size}x{bits}", metric)
    # takes minutes, for a search by Hamming distance that is not used
    index.do_polysemous_training = False
    return index


def fill_index(index: Any, vectors: VectorStore) -> None:
    """Trains an index on a sample and adds all vectors, shard by shard."""
    count = len(vectors)
    if not index.is_trained:
        rng = np.random.default_rng(0)
        picked = np.sort(rng.choice(count, min(count, _TRAINED_ON), replace=False))
        index.train(vectors.rows(picked))
    for _, rows in vectors.shards():
        index.add(rows)


def save_index(index: Any, path: Path) -> None:
    """Writes an index; the file appears when it is whole."""
    with new_file(path) as scratch:
        faiss().write_index(index, str(scratch))


def load_index(path: Path) -> Any:
    """Maps an index into memory: pages are read when they are searched."""
    library = faiss()
    try:
        return library.read_index(str(path), library.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise DamagedIndexError(path, "FAISS cannot read it") from error


def search_index(
    index: Any, queries: np.ndarray, top_k: int, candidates: int, probes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and positions, both [n, top_k], best first; -1 for none.

    Args:
        candidates: hnsw: efSearch.
        probes: ivfpq: clusters looked into.
    """
    library = faiss()
    parameters = None
    top_k = min(top_k, index.ntotal)
    kind = library.downcast_index(index)
    if isinstance(kind, library.IndexHNSW):
        parameters = library.SearchParametersHNSW(efSearch=max(candidates, top_k))
    elif isinstance(kind, library.IndexIVF):
        parameters = library.SearchParametersIVF(nprobe=min(probes, kind.nlist))
    scores, positions = index.search(queries, top_k, params=parameters)
    return scores, positions


def refine(
    queries: np.ndarray, positions: np.ndarray, vectors: VectorStore, top_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores candidates [n, c] again with the stored vectors and keeps the best ``top_k``."""
    width = min(top_k, positions.shape[1])
    scores = np.full((len(queries), width), -np.inf, np.float32)
    kept = np.full((len(queries), width), -1, np.int64)
    for row, (query, found) in enumerate(zip(queries, positions, strict=True)):
        found = found[found >= 0]
        exact = vectors.rows(found) @ query
        order = np.argsort(-exact, kind="stable")[:width]
        scores[row, : len(order)], kept[row, : len(order)] = exact[order], found[order]
    return scores, kept
