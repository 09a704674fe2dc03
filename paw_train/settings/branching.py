"""Settings of branching rollouts: from which states episodes are continued several times."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import Positive

BranchingCriterion = Literal["entropy", "random", "uniform", "value"]


class BranchingSettings(Group):
    """Which states of an episode are continued several times."""

    branches: Positive = 1
    """number of continuations of each branching state, including the one that was sampled first; 1: no
    branching. Values above 1 need an estimator that compares the continuations:
    ``algorithm.name=tree_grpo`` or ``vineppo``"""
    points: Positive = 2
    """number of branching states in each episode"""
    depth: Positive = 1
    """levels of branching: 1 branches the episodes of the group, 2 their branches as well, and so on"""
    criterion: BranchingCriterion = "entropy"
    """which states of an episode branch: those with the highest action ``entropy`` (PaW's estimate from the
    sampled tokens), ``random`` ones, evenly spaced ones (``uniform``), or those with the most uncertain
    ``value``: where the returns of the group's episodes that met the same observation differ most"""
    max_tokens: Positive | None = None
    """budget of sampled tokens for an update, including the group's own episodes: a state branches only if
    its branches fit, each assumed to be as long as the episode's own continuation; null: no limit"""
