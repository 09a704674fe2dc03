"""Settings of the policy's optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, Positive, ShareBelowOne


class OptimizerSettings(Group):
    """AdamW, and how an update is divided into optimizer steps."""

    lr: AtLeastZero = 1e-6
    """peak learning rate of AdamW"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate schedule by update: ``constant``, ``linear`` (to ``final_lr``) or ``cosine`` (to
    ``final_lr``)"""
    final_lr: AtLeastZero = 0.0
    """learning rate after the last update, as a share of ``lr``"""
    warmup_updates: Count = 0
    """number of updates over which the learning rate rises"""
    weight_decay: AtLeastZero = 0.0
    """weight decay of AdamW"""
    betas: Annotated[tuple[ShareBelowOne, ShareBelowOne], Field(strict=False)] = (0.9, 0.999)
    """betas of AdamW"""
    max_grad_norm: AboveZero = 1.0
    """maximum gradient norm; larger gradients are scaled down to it"""
    minibatches: Positive = 1
    """number of optimizer steps per update"""
    minibatch_size: Positive | None = None
    """number of sequences per optimizer step, as the papers give it: responses in window mode; episodes in
    conversation mode, where a sequence is a whole dialogue. An update then takes as many steps as its
    sequences need, all of nearly equal size; null: ``minibatches`` decides"""
    micro_batch_tokens: Positive = 16384
    """padded tokens per forward pass; affects memory, not results"""
    max_skipped: Count = 3
    """maximum number of consecutive optimizer steps skipped because the loss or gradient is not finite"""
    measure_gradients: bool = False
    """whether the gradient norms of the policy term and the world-model term are logged separately (a second
    backward pass)"""
