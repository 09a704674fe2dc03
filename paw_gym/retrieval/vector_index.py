"""Vectors of a corpus on disk, and the FAISS indexes that find their nearest neighbours.

``vectors.bin`` holds a row for each passage: [dim] codes, for int8 with their scale behind them. Rows are
appended, so that hours of encoding survive an interruption. An index is exact (flat), a graph (HNSW), or
compressed (IVF-PQ); all compare by inner product. IVF-PQ scores compressed vectors, so its best candidates
are scored again with the stored ones.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.constructors import need
from paw_gym.retrieval.corpus import Corpus
from paw_gym.retrieval.encoders import Encoder
from paw_gym.retrieval.index_files import Progress, claim, naming_damage

KINDS = ("flat", "hnsw", "ivfpq")
STORAGES = ("float32", "float16", "int8")
FORMAT = "paw-vectors-2"
_LINKS = 32
"""hnsw: M, links of a vector; memory grows with it"""
_BUILD_EFFORT = 200
"""hnsw: efConstruction, candidates looked at when a vector is added"""
_TRAINED_ON = 200_000
"""ivfpq: vectors that clusters and codes are learnt from, at most"""
_ADDED = 20_000
"""vectors added to an index at a time"""


def pack(vectors: np.ndarray, row: np.dtype[Any]) -> np.ndarray:
    """[n, dim] float32 as rows [n] to be stored."""
    rows = np.empty(len(vectors), row)
    if "scale" in (row.names or ()):
        scales = np.abs(vectors).max(axis=1) / 127
        rows["scale"] = np.maximum(scales, np.finfo(np.float32).tiny)
        vectors = np.rint(vectors / rows["scale"][:, None])
    rows["codes"] = vectors
    return rows


def unpack(rows: np.ndarray) -> np.ndarray:
    """Stored rows [n] as [n, dim] float32."""
    vectors: np.ndarray = rows["codes"].astype(np.float32)
    return vectors * rows["scale"][:, None] if "scale" in (rows.dtype.names or ()) else vectors


def row_of(dim: int, storage: str) -> np.dtype[Any]:
    """The type of a stored vector."""
    scale = [("scale", np.float32)] if storage == "int8" else []
    return np.dtype([("codes", storage, (dim,)), *scale])


def stored_vectors(folder: Path, dim: int, storage: str) -> np.ndarray:
    """The rows [N] of a folder, mapped into memory."""
    path = folder / "vectors.bin"
    with naming_damage(path):
        return np.memmap(path, row_of(dim, storage), mode="r")


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    folder: Path,
    storage: str = "float16",
    batch_size: int = 256,
    progress: Progress = lambda what, done, total: None,
) -> np.ndarray:
    """Encodes a corpus and returns its ``stored_vectors``; those that are there already are kept."""
    if batch_size < 1:
        raise ValueError(f"batch_size is 1 or more, got {batch_size}.")
    mine = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "model": encoder.fingerprint,
        "dim": encoder.dim,
        "storage": storage,
    }
    claim(folder / "vectors.json", mine)
    row = row_of(encoder.dim, storage)
    with open(folder / "vectors.bin", "ab") as file:
        done = file.tell() // row.itemsize
        file.truncate(done * row.itemsize)  # an interruption may leave a part of a row
        for first in range(done, len(corpus), batch_size):
            last = min(first + batch_size, len(corpus))
            vectors = encoder.encode_passages([corpus[i].contents for i in range(first, last)])
            file.write(pack(vectors, row).tobytes())
            progress("encoding", last, len(corpus))
    return stored_vectors(folder, encoder.dim, storage)


def faiss() -> Any:
    return need("faiss", "dense", "Searching vectors")


def index_of(rows: np.ndarray, kind: str, storage: str) -> Any:
    """A FAISS index of stored vectors.

    An IVF-PQ index has four times as many clusters as the square root of their number, and takes about a
    quarter of a byte for each dimension of a vector.
    """
    count, dim = len(rows), rows.dtype["codes"].shape[0]
    codes = {"float16": "SQfp16", "int8": "SQ8"}.get(storage, "Flat")
    form = {"flat": codes, "hnsw": f"HNSW{_LINKS}_{codes}"}.get(kind)
    trained_on = min(count, _TRAINED_ON)
    if form is None:
        if trained_on < 2:
            raise ValueError(
                f"kind='ivfpq' learns from 2 vectors at least, got {trained_on}: use 'flat'."
            )
        lists = max(1, min(round(4 * math.sqrt(count)), trained_on // 39))
        size = next(size for size in range(max(1, dim // 4), 0, -1) if dim % size == 0)
        bits = 8 if trained_on >= 256 else max(1, int(math.log2(trained_on)))
        form = f"IVF{lists},PQ{size}x{bits}"
    index = faiss().index_factory(dim, form, faiss().METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = _BUILD_EFFORT
    elif kind == "ivfpq":
        # takes minutes, for a search by Hamming distance that is not used
        index.do_polysemous_training = False
    if not index.is_trained:
        picked = np.random.default_rng(0).choice(count, trained_on, replace=False)
        index.train(unpack(rows[np.sort(picked)]))
    for first in range(0, count, _ADDED):
        index.add(unpack(rows[first : first + _ADDED]))
    return index
