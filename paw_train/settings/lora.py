"""The settings of low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from paw_train.settings.ranges import AboveZero, Count, Text, check_fields


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters in place of full fine-tuning."""

    rank: Count = 0
    """rank of the adapters; 0: none, every weight is trained"""
    alpha: AboveZero | None = None
    """scale of their output, over the rank; null: twice the rank"""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """on their input, in the warm start only: RL compares with the policy that sampled"""
    targets: Text = "all-linear"
    """``all-linear`` (all but the head), or names of layers with commas: ``q_proj,v_proj``"""

    def __post_init__(self) -> None:
        check_fields(self, "model.lora")
