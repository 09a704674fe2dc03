"""Settings of evaluation: before, during and after training."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import AtLeastZero, Count, Positive, Text


class EvalSettings(Group):
    """The tasks on which success is measured."""

    split: Text = "valid_unseen"
    """split that the evaluation panel is sampled from, once, by ``seed``"""
    tasks: Count = 200
    """number of tasks of the evaluation panel, at most those of the split"""
    plays: Positive = 1
    """number of episodes of each task before and after RL, each sampled independently; the validations
    during training have one"""
    seed: Count = 1234
    """seed of the panel and of sampling"""
    temperature: AtLeastZero = 0.4
    """sampling temperature in evaluations; 0.4 is the paper's for validation"""
    batch: Positive = 128
    """episodes that run at the same time"""
    every: Count = 0
    """number of updates between validations on the selection panel; 0: none"""
    selection_split: Text = "valid_seen"
    """split of the selection panel, for validation during training and the choice of the checkpoint"""
    selection_tasks: Count = 64
    """number of tasks of the selection panel"""
    select_by: Literal["success_rate", "score"] = "success_rate"
    """the checkpoint with the highest value on the selection panel is kept as the best: ``success_rate``, or
    ``score`` (the mean score)"""
