"""At which states of an episode a branching rollout goes back: a score for each of its steps.

A criterion is a pure function; ``branch_points`` takes the steps with the highest scores.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from paw_train.rollouts.policy import response_seed
from paw_train.settings.rollout import BranchingCriterion


@dataclass(frozen=True, slots=True)
class Path:
    """An episode as the criteria read it: its own steps, in order."""

    episode: str
    """its name"""
    group: int
    logprobs: Sequence[Sequence[float]]
    """[T] of the sampled tokens of each response, in nats"""
    observations: Sequence[str | None]
    """[T] what each response answered"""
    shared: Sequence[str | None]
    """what the responses answered that it shares with the episode it branched from"""
    total_reward: float
    """R of the whole episode"""


class Criterion(Protocol):
    """Scores of the steps of an episode; the highest branch."""

    def __call__(self, path: Path, group: Sequence[Path], points: int, seed: int) -> list[float]:
        """[T] scores.

        Args:
            path: the episode.
            group: all episodes of its group, itself included.
            points: how many steps will be taken.
            seed: of random choices.
        """
        ...


def entropy(path: Path, group: Sequence[Path], points: int, seed: int) -> list[float]:
    """PaW's estimate from the sampled tokens (Eq. 3): the mean of `-p log p` over a response."""
    return [sum(-math.exp(p) * p for p in ps) / max(1, len(ps)) for ps in path.logprobs]


def random(path: Path, group: Sequence[Path], points: int, seed: int) -> list[float]:
    """Any steps, each set of them equally likely; the seed and the episode's name decide."""
    generator = np.random.default_rng(response_seed(seed, path.episode, -1))
    return [float(value) for value in generator.random(len(path.logprobs))]


def uniform(path: Path, group: Sequence[Path], points: int, seed: int) -> list[float]:
    """Steps at equal distances: of T steps those nearest below `T k / (points + 1)`, k = 1..points."""
    count = len(path.logprobs)
    wanted = {count * k // (points + 1) for k in range(1, points + 1)}
    return [float(step in wanted) for step in range(count)]


def value(path: Path, group: Sequence[Path], points: int, seed: int) -> list[float]:
    """Standard deviation of the returns of the group's episodes that met the step's observation.

    States are matched as GiGPO's anchors are: by the raw observation. One that a single episode met
    has no deviation and scores 0.
    """
    returns: dict[str | None, list[float]] = defaultdict(list)
    for other in group:
        for observation in {*other.shared, *other.observations}:
            returns[observation].append(other.total_reward)
    return [float(np.std(returns[observation])) for observation in path.observations]


CRITERIA: Mapping[BranchingCriterion, Criterion] = MappingProxyType(
    {"entropy": entropy, "random": random, "uniform": uniform, "value": value}
)
"""by the value of ``rollout.branching.criterion``"""


def branch_points(
    path: Path, group: Sequence[Path], criterion: BranchingCriterion, points: int, seed: int
) -> list[int]:
    """The steps of an episode at which it branches, best first; the earlier of two equal ones.

    Args:
        path: the episode.
        group: all episodes of its group.
        criterion: name of the criterion.
        points: most steps to take.
        seed: of random choices.

    Returns:
        At most ``points`` numbers of own steps, from 0.
    """
    scores = CRITERIA[criterion](path, group, points, seed)
    ranked = sorted(range(len(scores)), key=lambda step: (-scores[step], step))
    return ranked[:points]
