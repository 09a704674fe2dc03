"""Settings of evaluation: before, during and after training."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import AtLeastZero, Count, Group, Positive, Seed, Text


class EvalSettings(Group):
    """The tasks on which success is measured."""

    split: Text = "valid_unseen"
    """split from which the evaluation panel is sampled, once, with ``seed``"""
    tasks: Count = 200
    """number of tasks in the evaluation panel, at most those of the split"""
    plays: Positive = 1
    """number of episodes per task before and after RL, each sampled independently; validations during
    training always run one"""
    seed: Seed = 1234
    """seed of the panel and of sampling"""
    temperature: AtLeastZero = 0.4
    """sampling temperature in evaluations; 0.4 is the paper's value for validation"""
    batch: Positive = 128
    """number of episodes that run at the same time"""
    every: Count = 0
    """number of updates between validations on the selection panel; 0: none"""
    selection_split: Text = "valid_seen"
    """split of the selection panel, for validation during training and the choice of the checkpoint"""
    selection_tasks: Count = 64
    """number of tasks in the selection panel"""
    select_by: Literal["success_rate", "score"] = "success_rate"
    """metric on the selection panel that determines the best checkpoint: ``success_rate``, or ``score`` (the
    mean score)"""
