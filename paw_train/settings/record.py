"""Settings of the episodes that a run records."""

from __future__ import annotations

from paw_train.settings.base import Group
from paw_train.settings.ranges import Count, Positive


class RecordSettings(Group):
    """The training episodes that a run records for ``paw view``; results do not depend on them."""

    every: Count = 10
    """number of updates between recordings of episodes, starting with the first update; 0: none"""
    groups: Positive = 1
    """number of groups recorded in each of these updates"""
    tokens: bool = True
    """whether token probabilities of the next observations, entropies, advantages and the world model's
    selection and weights are recorded as well, with one forward pass over these episodes"""
