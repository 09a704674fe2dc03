"""Settings of branching rollouts: from which states episodes are continued several times."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import Positive

BranchingCriterion = Literal["entropy", "random", "uniform", "value"]


class BranchingSettings(Group):
    """From which states episodes are continued several times."""

    branches: Positive = 1
    """continuations of each branching state, the one that was sampled first included; 1: no branching.
    Above 1 it needs an estimator that compares them: ``algorithm.name=tree_grpo`` or ``vineppo``"""
    points: Positive = 2
    """branching states of each episode"""
    depth: Positive = 1
    """levels of branching: 1 branches the episodes of the group, 2 their branches as well, and so on"""
    criterion: BranchingCriterion = "entropy"
    """which states of an episode branch: those of highest action ``entropy`` (PaW's estimate from the
    sampled tokens), ``random`` ones, ones at equal distances (``uniform``), or those of most uncertain
    ``value``: where episodes of the group that passed the same observation differ most in return"""
    max_tokens: Positive | None = None
    """budget of an update in sampled tokens, the group's own episodes included: a state branches only
    where its branches fit, each as long as the episode's own continuation was; null: no limit"""
