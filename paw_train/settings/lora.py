"""Settings of low-rank adapters."""

from __future__ import annotations

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, Count, ShareBelowOne, Text


class LoraSettings(Group):
    """Low-rank adapters instead of full fine-tuning."""

    base: str | None = None
    """the model that a saved adapter belongs to, in ``model.path`` or a run; null: the one that its
    file names, if that is a name on the hub and not a folder"""
    rank: Count = 0
    """rank of the adapters; 0: no adapters, all weights are trained"""
    alpha: AboveZero | None = None
    """scale of the adapters' output, divided by the rank; null: twice the rank"""
    dropout: ShareBelowOne = 0.0
    """dropout on the adapters' input, in the warm start only: in RL, the ratio is to the policy that sampled,
    which has no dropout"""
    targets: Text = "all-linear"
    """layers with adapters: ``all-linear`` (all but ``lm_head``), or names separated by commas:
    ``q_proj,v_proj``"""
