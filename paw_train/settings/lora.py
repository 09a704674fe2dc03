"""The settings of low-rank adapters."""

from __future__ import annotations

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, Count, ShareBelowOne, Text


class LoraSettings(Group):
    """Low-rank adapters in place of full fine-tuning."""

    rank: Count = 0
    """rank of the adapters; 0: none, every weight is trained"""
    alpha: AboveZero | None = None
    """scale of their output, over the rank; null: twice the rank"""
    dropout: ShareBelowOne = 0.0
    """on their input, in the warm start only: RL compares with the policy that sampled"""
    targets: Text = "all-linear"
    """``all-linear`` (all but the head), or names of layers with commas: ``q_proj,v_proj``"""
