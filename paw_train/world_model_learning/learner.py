"""The part of the second stage that both of its methods share: an updater, its seeds and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from paw_train.algorithms.update import Updater, update_seed
from paw_train.settings import OptimizerSettings, Settings


class Learner(ABC):
    """Learns a world model, one update at a time."""

    def __init__(self, settings: Settings, updater: Updater) -> None:
        self.settings, self.updater = settings, updater

    @abstractmethod
    def update(self, number: int) -> dict[str, Any]:
        """One update and its metrics; everything random in it follows from the seed and its number."""

    def seed(self, number: int) -> int:
        return update_seed(self.settings.seed, 2, number)


def stage_optimizer(
    settings: Settings, lr: float, warmup_updates: int, minibatches: int
) -> OptimizerSettings:
    """The run's optimiser with the stage's own learning rate, which falls to 0, and optimiser steps."""
    return settings.optimizer.replace(
        lr=lr,
        schedule="linear",
        warmup_updates=warmup_updates,
        minibatches=minibatches,
        minibatch_size=None,
        measure_gradients=False,
    )
