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
    """what makes a difficulty cell worth drawing: ``variance`` of success within its groups, or
    ``learning_progress``, how fast its success changes; ``off``: all tasks are drawn alike"""
    window: Annotated[int, Ge(2)] = 8
    """number of updates whose groups are counted"""
    explore: PositiveShare = 0.2
    """share of the draws by cell that go to all cells alike, so that none is forgotten"""
    sharpness: AtLeastZero = 1.0
    """exponent of the scores: above 1 the best cells are drawn more, 0 draws all cells alike"""
    replay: ShareBelowOne = 0.2
    """probability that a group gets a task again that was half solved within the window, as far as there
    are any"""
