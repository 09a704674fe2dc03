"""Settings of the warm start on an expert's episodes."""

from __future__ import annotations

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, Positive, Share


class CloningSettings(Group):
    """The warm start: next-token learning on an expert's episodes."""

    episodes: Count = 0
    """number of expert episodes; 0: no warm start"""
    episodes_per_task: Positive | None = None
    """maximum number of expert episodes per training task: with an environment that has few tasks, the warm
    start then uses fewer ``episodes``, and proportionally fewer ``steps``; null: no limit"""
    noise: Share = 0.1
    """share of the expert's steps replaced by a perturbed action (a random one, or the previous one again),
    so that the policy also learns to recover"""
    misplaced: Share = 0.0
    """share of the perturbed actions, not counting those that repeat the previous action, that are what the
    expert does at that moment in another episode. Most of these are refused, so the policy learns to continue
    after a refusal"""
    steps: Count = 400
    """number of optimizer steps"""
    checkpoint_every: Positive = 200
    """number of optimizer steps between checkpoints, from which an interrupted warm start continues"""
    batch_tokens: Positive = 8192
    """padded tokens per optimizer step"""
    lr: AboveZero = 3e-3
    """peak learning rate of AdamW (embeddings and norms)"""
    matrix_lr: AboveZero | None = 0.02
    """peak learning rate of Muon (weight matrices of the blocks), for models trained from scratch; null:
    AdamW for these too, which pretrained models and adapters need"""
    warmup: Share = 0.05
    """share of the steps over which the learning rate rises"""
    context_weight: AtLeastZero = 0.3
    """loss weight of the tokens outside the expert's responses, relative to 1 inside them"""
