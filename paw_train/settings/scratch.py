"""Settings of a small model that is trained from scratch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, Positive

FEWEST_PIECES = 512
"""256 bytes, the markers of a dialogue, and some pieces"""


class ScratchModelSettings(Group):
    """Size of a model that is trained from scratch (Llama architecture)."""

    hidden: Positive = 128
    """width of the model"""
    layers: Positive = 3
    """number of transformer blocks"""
    heads: Positive = 4
    """number of attention heads"""
    kv_heads: Positive = 1
    """number of key-value heads; one keeps the cache small (reading it is the main cost of sampling)"""
    intermediate: Positive = 384
    """width of the feed-forward layers"""
    max_positions: Positive = 4096
    """maximum context length, in tokens"""
    rope_theta: AboveZero = 10_000.0
    """base of the rotary embeddings (RoPE); with a larger base, more of each head is left for content and
    less for position"""
    tokenizer: Literal["words", "entities", "pieces", "entity_pieces"] = "words"
    """kind of tokenizer: ``words``: the words of the training tasks; ``entities``: the same, with a name and
    its number as one token (``cabinet 3``), which a policy copies in one step; ``pieces``: byte-level BPE,
    for environments in which most names are new; ``entity_pieces``: pieces, with a name and its number as
    one token"""
    spell_unknown: bool = True
    """whether ``words`` and ``entities`` spell a word that training does not show, letter by letter, which
    the warm start practices with made-up words; false: any such word is the same unknown token"""
    pieces: Annotated[int, Ge(FEWEST_PIECES)] = 1024
    """number of pieces; with fewer, names are split into more, and more frequent, pieces"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"model.scratch.hidden={self.hidden} does not divide into model.scratch.heads="
                f"{self.heads} of an even width."
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model.scratch.kv_heads={self.kv_heads} does not divide model.scratch.heads={self.heads}."
            )
        return self
