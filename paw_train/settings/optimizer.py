"""The settings of the policy's optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, Positive, ShareBelowOne


class OptimizerSettings(Group):
    """AdamW and how an update is split."""

    lr: AtLeastZero = 1e-6
    """peak learning rate"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """``constant``, ``linear`` (to ``final_lr``) or ``cosine`` (to ``final_lr``), by update"""
    final_lr: AtLeastZero = 0.0
    """learning rate after the last update, as a share of ``lr``"""
    warmup_updates: Count = 0
    """updates over which the learning rate rises"""
    weight_decay: AtLeastZero = 0.0
    """AdamW's"""
    betas: Annotated[tuple[ShareBelowOne, ShareBelowOne], Field(strict=False)] = (0.9, 0.999)
    """AdamW's"""
    max_grad_norm: AboveZero = 1.0
    """gradient clipping"""
    minibatches: Positive = 1
    """optimiser steps an update"""
    minibatch_size: Positive | None = None
    """sequences of one optimiser step, as the papers give it: responses in window mode, episodes in
    conversation mode, where a sequence is a whole dialogue. An update then takes as many steps as its
    sequences need, all of nearly equal size; null: ``minibatches`` decides"""
    micro_batch_tokens: Positive = 16384
    """padded tokens of one forward pass: memory, not results"""
    max_skipped: Count = 3
    """optimiser steps in a row that may be skipped for a loss or gradient that is not finite"""
    measure_gradients: bool = False
    """also log the gradient norms of the policy and the world-model term apart (a second backward)"""
