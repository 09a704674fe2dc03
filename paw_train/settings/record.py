"""The settings of what a run keeps to look at."""

from __future__ import annotations

from paw_train.settings.base import Group
from paw_train.settings.ranges import Count, Positive


class RecordSettings(Group):
    """Which of training's episodes a run keeps to look at (``paw view``); results do not depend on it."""

    every: Count = 10
    """updates between those that keep episodes: the first, and then every so many; 0: none do"""
    groups: Positive = 1
    """groups of such an update that are kept"""
    tokens: bool = True
    """with the probability of every token of their next observations, entropies, advantages and the
    world model's selection and weights: one forward pass over the kept episodes"""
