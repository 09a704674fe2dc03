"""Settings of the curriculum: which tasks of the training split an update draws."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import BeforeValidator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AtLeastZero, PositiveShare, ShareBelowOne, yaml_switch


class CurriculumSettings(Group):
    """A curriculum at the edge of ability, in training's rollouts only."""

    method: Annotated[
        Literal["off", "variance", "learning_progress"], BeforeValidator(yaml_switch)
    ] = "off"
    """score by which difficulty cells are sampled: ``variance`` of success within their groups, or
    ``learning_progress``, how fast their success changes; ``off``: all tasks are sampled uniformly"""
    window: Annotated[int, Ge(2)] = 8
    """number of most recent updates whose groups are counted"""
    explore: PositiveShare = 0.2
    """share of the draws of cells that are uniform over all cells, so that none is forgotten"""
    sharpness: AtLeastZero = 1.0
    """exponent of the scores: above 1, the best cells are sampled more often; 0 samples cells uniformly"""
    replay: ShareBelowOne = 0.2
    """probability that a group replays a task that was half solved within the window, if there is one"""
