"""Which receptacles share a place, and the numbers of places: "You arrive at loc 7."

A modified room's receptacles get places one after another; one in ten takes the place of an earlier one.
The numbers are a random permutation, since positions are random. Who shares with whom follows from the order
in which receptacles were placed, which is summed out over samples of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paw_gym.envs.alfworld.procedural.placement import SHARED_CELL
from paw_gym.envs.alfworld.procedural.scene import SceneGoal
from paw_gym.envs.alfworld.procedural.tasks import LAMP_PLACES, TOOLS


class Locations:
    """Samples of which receptacles share a place, weighed by what is known.

    Args:
        receptacle_types: PDDL spelling.
        goal: what it needs is placed first.
        samples: of the order and of who shares.
        seed: of the samples.
    """

    def __init__(
        self, receptacle_types: Sequence[str], goal: SceneGoal, samples: int = 4000, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        count = len(receptacle_types)
        order = _orders(receptacle_types, goal, samples, rng)
        place = np.zeros((samples, count), dtype=np.int64)
        rows = np.arange(samples)
        for turn in range(count):
            mine = order[:, turn]
            place[rows, mine] = turn
            if turn:
                earlier = order[rows, rng.integers(0, turn, samples)]
                shares = rng.random(samples) < SHARED_CELL
                place[rows[shares], mine[shares]] = place[rows[shares], earlier[shares]]
        self._same = place[:, :, None] == place[:, None, :]
        first = np.argmax(self._same, axis=2)  # the first receptacle of each one's place
        # and the place where the agent starts
        self._places = 1 + (first == np.arange(count)).sum(axis=1)

    def shares(self, known: Mapping[int, int], receptacle: int, other: int) -> float:
        """Probability that two receptacles have one place, given the numbers of known places."""
        weights = self._weights(known)
        return float(weights[self._same[:, receptacle, other]].sum() / weights.sum())

    def together(
        self, known: Mapping[int, int], receptacle: int, members: Sequence[int]
    ) -> float:
        """Probability that just these receptacles share one's place."""
        weights = self._weights(known)
        wanted = np.isin(np.arange(self._same.shape[1]), members)
        right = (self._same[:, receptacle] == wanted).all(axis=1)
        return float(weights[right].sum() / weights.sum())

    def number(self, known: Mapping[int, int], receptacle: int, number: int) -> float:
        """Probability of the number of a receptacle's place.

        Args:
            known: numbers of the places of other receptacles.
            receptacle: whose place it is.
            number: of that place, from 1.
        """
        weights = self._weights(known)
        same = self._same[:, receptacle, list(known)].any(axis=1)
        at = [other for other, place in known.items() if place == number]
        if at:
            right = self._same[:, receptacle, at[0]]
            return float(weights[right].sum() / weights.sum())
        left = self._places - len(set(known.values()))
        fresh = ~same & (self._places >= number) & (left > 0)
        return float((weights[fresh] / left[fresh]).sum() / weights.sum())

    def _weights(self, known: Mapping[int, int]) -> np.ndarray:
        """Probability of the known numbers in each sample."""
        possible = np.ones(len(self._places), dtype=bool)
        pairs = list(known.items())
        for i, (one, place) in enumerate(pairs):
            for other, its in pairs[:i]:
                possible &= self._same[:, one, other] == (place == its)
        weights = possible.astype(float)
        for taken in range(len(set(known.values()))):
            weights /= np.maximum(1, self._places - taken)
        weights[self._places < max(known.values(), default=0)] = 0.0
        if not weights.any():
            raise ValueError(
                "None of the sampled rooms agrees with the places that were seen: take more samples."
            )
        return weights


def _orders(
    receptacle_types: Sequence[str], goal: SceneGoal, samples: int, rng: np.random.Generator
) -> np.ndarray:
    """[samples, receptacles] orders in which they were placed: target, tool, then at random.

    The third receptacle that the generator makes sure of, a place for the goal's object, is left to chance.
    """
    first = [set(LAMP_PLACES)] if goal.task_type == "look_at_obj_in_light" else [{goal.target_type}]
    if goal.task_type in TOOLS:
        first.append({TOOLS[goal.task_type][0]})
    keys = rng.random((samples, len(receptacle_types)))
    for turn, types in enumerate(first):
        fitting = [i for i, kind in enumerate(receptacle_types) if kind in types]
        if fitting:
            chosen = rng.choice(fitting, samples)
            keys[np.arange(samples), chosen] = turn - len(first)
    return keys.argsort(axis=1)
