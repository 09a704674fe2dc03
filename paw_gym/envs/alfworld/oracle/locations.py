"""Receptacles that share a place, and the numbers of places: "You arrive at loc 7."

A modified room's receptacles get places one after another; one in ten takes the place of an earlier one.
The numbers are a random permutation, since positions are random. Who shares with whom follows from the order
in which receptacles were placed, which is sampled; what is known then weighs the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paw_gym.envs.alfworld.procedural.placement import SHARED_CELL, needed_types
from paw_gym.envs.alfworld.procedural.scene import SceneGoal

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Samples:
    """Rooms that agree with who was seen to share a place with whom."""

    place: Ints
    """[samples, receptacles] the receptacle that came first to each one's place"""
    weight: Floats
    """[samples]"""

    @property
    def places(self) -> Ints:
        """[samples] places; one more is where the agent starts."""
        count = self.place.shape[1]
        taken: Ints = (self.place == np.arange(count)).sum(axis=1)
        return 1 + taken


class Locations:
    """Who shares a place with whom, over samples of rooms weighed by what is known (importance sampling).

    Args:
        receptacle_types: PDDL spelling.
        goal: what it needs is placed first.
        samples: rooms that are sampled for each question.
        seed: of the samples; same questions, same answers.
    """

    def __init__(
        self, receptacle_types: Sequence[str], goal: SceneGoal, samples: int = 4000, seed: int = 0
    ) -> None:
        self._order = _orders(receptacle_types, goal, samples, np.random.default_rng(seed))
        self._seed = seed
        self._last: tuple[dict[int, int], _Samples] | None = None

    def shares(self, known: Mapping[int, int], receptacle: int, other: int) -> float:
        """Probability that two receptacles have one place, given the numbers of known places."""
        sampled = self._given(known)
        return _mean(sampled.place[:, receptacle] == sampled.place[:, other], sampled.weight)

    def together(self, known: Mapping[int, int], receptacle: int, members: Sequence[int]) -> float:
        """Probability that just these receptacles share one's place.

        Where the number of that place is known, by the chain rule: each member given those before it, then
        that there is no further one. So a rare company is estimated as well as a frequent one.
        """
        chance, now = 1.0, dict(known)
        if receptacle in known:
            here = known[receptacle]
            for member in members:
                if member not in now:
                    chance *= self.number(now, member, here)
                    now[member] = here
        sampled = self._given(now)
        wanted = np.isin(np.arange(sampled.place.shape[1]), members)
        same = sampled.place == sampled.place[:, [receptacle]]
        return chance * _mean((same == wanted).all(axis=1), sampled.weight)

    def number(self, known: Mapping[int, int], receptacle: int, number: int) -> float:
        """Probability of the number of a receptacle's place.

        Args:
            known: numbers of the places of other receptacles.
            receptacle: whose place it is.
            number: of that place, from 1.
        """
        sampled = self._given(known)
        place = sampled.place
        at = [other for other, its in known.items() if its == number]
        if at:
            return _mean(place[:, receptacle] == place[:, at[0]], sampled.weight)
        known_place = (place[:, [receptacle]] == place[:, list(known)]).any(axis=1)
        left = sampled.places - len(set(known.values()))
        fresh = ~known_place & (sampled.places >= number)
        return _mean(fresh / np.maximum(left, 1), sampled.weight)

    def _given(self, known: Mapping[int, int]) -> _Samples:
        """Rooms in which the known places are as they are, weighed by their probability."""
        if self._last is None or self._last[0] != known:
            self._last = (dict(known), self._sample(known))
        return self._last[1]

    def _sample(self, known: Mapping[int, int]) -> _Samples:
        rng = np.random.default_rng(self._seed)
        rows = np.arange(len(self._order))
        count = self._order.shape[1]
        place = np.full((len(rows), count), -1)
        weight = np.ones(len(rows))
        # the receptacle that came first to a known place, and whether somebody's place is a known one
        numbers = np.array([known.get(r, 0) for r in range(count)])
        first_at = np.full((len(rows), numbers.max(initial=0) + 1), -1)
        claimed = np.zeros((len(rows), count), dtype=bool)
        for turn in range(count):
            mine = self._order[:, turn]
            number = numbers[mine]
            begun = first_at[rows, number]
            placed = place >= 0
            loose = placed & ~np.take_along_axis(claimed, np.maximum(place, 0), 1)
            # a visited receptacle joins its own place, or one of which nothing is known
            may_join = np.where((number > 0)[:, None], loose, placed)
            forced = (number > 0) & (begun >= 0)
            own = (place == np.where(forced, begun, -2)[:, None]).sum(axis=1)
            joining = SHARED_CELL * may_join.sum(axis=1) / max(1, turn)
            alone = 1.0 - SHARED_CELL if turn else 1.0
            weight *= np.where(forced, SHARED_CELL * own / max(1, turn), alone + joining)
            joins = rng.random(len(rows)) * (alone + joining) < joining
            other = np.where(may_join, rng.random(may_join.shape), -1.0).argmax(axis=1)
            where = np.where(forced, begun, np.where(joins, place[rows, other], mine))
            place[rows, mine] = where
            first_at[rows, number] = np.where(number > 0, where, -1)
            claimed[rows, where] |= number > 0
        found = _Samples(place, weight)
        taken = len(set(known.values()))
        # the known numbers are a random choice among those of all places
        chances = np.prod([1 / np.maximum(1, found.places - i) for i in range(taken)], axis=0)
        possible = found.places >= max(numbers.max(initial=0), taken + 1)
        return _Samples(place, weight * np.where(possible, chances, 0.0))


def _mean(values: NDArray[Any], weight: Floats) -> float:
    return float((values * weight).sum() / weight.sum())


def _orders(
    receptacle_types: Sequence[str], goal: SceneGoal, samples: int, rng: np.random.Generator
) -> Ints:
    """[samples, receptacles] orders in which they were placed: target, tool, then at random.

    The third receptacle that the generator makes sure of, a place for the goal's object, is left to chance.
    """
    *first, _ = needed_types(goal)
    keys = rng.random((samples, len(receptacle_types)))
    for turn, types in enumerate(first):
        fitting = [i for i, kind in enumerate(receptacle_types) if kind in types]
        if fitting:
            chosen = rng.choice(fitting, samples)
            keys[np.arange(samples), chosen] = turn - len(first)
    return keys.argsort(axis=1)
