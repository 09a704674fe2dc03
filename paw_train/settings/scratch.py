"""The settings of a small model that is trained from scratch."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_PIECES = 512


@dataclass(frozen=True)
class ScratchModelSettings:
    """Size of a model that is trained from nothing (Llama architecture)."""

    hidden: int = 128
    """width"""
    layers: int = 3
    """transformer blocks"""
    heads: int = 4
    """attention heads"""
    kv_heads: int = 1
    """key-value heads; one keeps the cache small, and reading the cache is what sampling costs"""
    intermediate: int = 384
    """width of the feed-forward layers"""
    max_positions: int = 4096
    """longest context, in tokens"""
    tokenizer: str = "words"
    """``words``: those of the training tasks, any other is unknown; ``pieces``: byte-level BPE, which
    knows every text, for environments whose held-out tasks have names of their own"""
    pieces: int = 1024
    """vocabulary of ``tokenizer: pieces``; fewer leave names in more, and more familiar, pieces"""

    def __post_init__(self) -> None:
        if self.tokenizer not in ("words", "pieces"):
            raise ValueError(
                f"model.scratch.tokenizer is 'words' or 'pieces'; got {self.tokenizer!r}."
            )
        if self.pieces < FEWEST_PIECES:
            raise ValueError(
                f"model.scratch.pieces is {FEWEST_PIECES} or more (256 bytes and what marks a dialogue); "
                f"got {self.pieces}."
            )
