"""The settings of evaluation: before, during and after training."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import AtLeastZero, Count, Positive, Text


class EvalSettings(Group):
    """Which tasks success is measured on."""

    split: Text = "valid_unseen"
    """split that the panel is drawn from, once, by ``seed``"""
    tasks: Count = 200
    """panel size; at most the split's"""
    plays: Positive = 1
    """how often the panel is played before and after RL, each time with sampling of its own; the
    validations during training play theirs once"""
    seed: Count = 1234
    """of the panel and of sampling"""
    temperature: AtLeastZero = 0.4
    """of the answers; the paper's validation value"""
    batch: Positive = 128
    """episodes played together"""
    every: Count = 0
    """updates between validations on the selection panel; 0: none"""
    selection_split: Text = "valid_seen"
    """split that validation during training, and the choice of the checkpoint, use"""
    selection_tasks: Count = 64
    """size of that panel"""
    select_by: Literal["success_rate", "score"] = "success_rate"
    """``success_rate`` or ``score`` (the mean score): what the checkpoint with the most of it is kept for"""
