"""The settings of low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters in place of full fine-tuning."""

    rank: int = 0
    """rank of the adapters; 0: none, every weight is trained"""
    alpha: float | None = None
    """scale of their output, over the rank; null: twice the rank"""
    dropout: float = 0.0
    """on their input, in the warm start only: RL compares with the policy that sampled"""
    targets: str = "all-linear"
    """``all-linear`` (all but the head), or names of layers with commas: ``q_proj,v_proj``"""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"model.lora.rank is 0 (off) or more, got {self.rank}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"model.lora.dropout must be in [0, 1), got {self.dropout}.")
