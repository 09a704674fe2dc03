"""The exact posterior of what lies where in a modified procedural room.

``lay_things`` draws the kinds of things in random order, a number of copies of each, and a receptacle for
each copy, until there are enough. The numbers in display names follow from random positions, so they are
a random permutation of the copies. All of this is summed out by dynamic programming over the kinds: no
sampling, no error but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paw_gym.envs.alfworld.procedural.generate import THINGS_PER_RECEPTACLE
from paw_gym.envs.alfworld.procedural.placement import (
    accepting_types,
    attraction,
    barred_type,
    copies_range,
)
from paw_gym.envs.alfworld.procedural.scene import SceneGoal
from paw_gym.envs.alfworld.procedural.tasks import LAMP

Array = NDArray[np.float64]
MORE = 3
"""How many things remain in a listing, as far as its words tell: none, one, or more."""


def listing_order(kind: str) -> str:
    """By which things of a kind, as displayed, are sorted in listings: the beginning of their ids."""
    return f"{kind}_bar_"


@dataclass(frozen=True)
class Kind:
    """One kind of thing, as the generator lays it."""

    name: str
    """as displayed: "soapbar\""""
    share: tuple[float, ...]
    """[receptacles] probability that a copy lies there"""
    copies: Mapping[int, float]
    """probability of each number of copies, given that the kind is there"""
    always: bool
    """of the goal: laid in every game"""

    @property
    def order(self) -> str:
        """By which listings are sorted."""
        return listing_order(self.name)


@dataclass(frozen=True)
class Known:
    """The part of a room's contents at the start of the game that has been seen.

    A listing that is being read is part of it: the kinds before ``frontier`` are all read, of the frontier's
    kind the numbers from the highest down to ``lowest``.
    """

    where: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """receptacle of each thing that was seen, by kind and number"""
    seen: frozenset[int] = frozenset()
    """receptacles of which all contents are known"""
    reading: int | None = None
    frontier: str = ""
    lowest: int | None = None

    def begin(self, receptacle: int) -> Known:
        """At the start of a receptacle's listing."""
        return Known(self.where, self.seen, receptacle)

    def read(self, kind: str, number: int) -> Known:
        """After the listing's next thing."""
        if self.reading is None:
            raise ValueError("No listing is being read: call begin() first.")
        numbers = {**self.where.get(kind, {})}
        if number in numbers:
            raise ValueError(f"{kind} {number} was seen before.")
        numbers[number] = self.reading
        where = {**self.where, kind: numbers}
        return Known(where, self.seen, self.reading, listing_order(kind), number)

    def end(self) -> Known:
        """After the whole listing."""
        read = frozenset() if self.reading is None else frozenset({self.reading})
        return Known(self.where, self.seen | read)


class Contents:
    """The law of a room's contents, given its receptacles, its kind of room and the goal.

    Args:
        kinds: of things, in any order.
        receptacles: how many.
        per_receptacle: range of the number of optional things for each receptacle.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        receptacles: int,
        per_receptacle: tuple[float, float] = THINGS_PER_RECEPTACLE,
    ) -> None:
        placed = [kind for kind in kinds if any(kind.share)]
        self.kinds = sorted(placed, key=lambda kind: kind.order)
        self.receptacles = receptacles
        self._names = {kind.name for kind in self.kinds}
        self._optional = [kind for kind in self.kinds if not kind.always]
        self._wanted = _wanted(receptacles, per_receptacle)
        self._weights = self._sequence_weights()

    @classmethod
    def of(
        cls, receptacle_types: Sequence[str], object_types: Set[str], goal: SceneGoal
    ) -> Contents:
        """The law of the generator.

        Args:
            receptacle_types: PDDL spelling, in the order of the receptacles' numbers here.
            object_types: that rooms of this kind have and that texts show.
            goal: of the game.
        """
        kinds = [_kind(kind, receptacle_types, goal) for kind in object_types | {goal.object_type}]
        if goal.task_type != "look_at_obj_in_light":
            kinds = [kind for kind in kinds if kind.name != LAMP.lower()]
        return cls(kinds, len(receptacle_types))

    def weight(self, known: Known) -> Array:
        """Probability of what is known, by how many things remain in the listing that is being read.

        Returns:
            [3]: none, one, more; all of it in the first where no listing is being read.
        """
        if not known.where.keys() <= self._names:
            return np.zeros(MORE)
        state = np.zeros((self._most + 1, self._widest + 1, 1 + self._copies, MORE))
        state[0, 0, 0, 0] = 1.0
        for kind in self._optional:
            state = self._with(state, self._factors(kind, known))
        total: Array = np.einsum("nslm,nsl->m", state, self._weights)
        for kind in self.kinds:
            if kind.always:
                total = total @ sum(_mixing(f) for f in self._factors(kind, known).values())
        return total

    def numbers(self, kind: str) -> int:
        """The highest number that a thing of a kind can have; 0: there is no such kind here."""
        return max((max(k.copies) for k in self.kinds if k.name == kind), default=0)

    # --- the sum over kinds ------------------------------------------------------------------------

    def _with(self, state: Array, factors: Mapping[int, Array]) -> Array:
        """State [kinds, things, copies of the last kind, remaining] with one more kind decided."""
        new = state @ _mixing(factors[0])
        for copies, factor in factors.items():
            if copies == 0 or not factor.any():
                continue
            moved = state @ _mixing(factor)
            new[1:, copies:] += moved[:-1, :-copies]
            new[1:, copies:, copies] += moved[:-1, :-copies, 0]
        return new

    def _factors(self, kind: Kind, known: Known) -> dict[int, Array]:
        """[3] by number of copies: probability of what is known and of what remains to be read."""
        seen = known.where.get(kind.name, {})
        there = math.prod(kind.share[place] for place in seen.values())
        hidden = 1.0 - sum(kind.share[r] for r in known.seen)
        here = 0.0 if known.reading is None else kind.share[known.reading]
        found = {} if kind.always else {0: _remaining(0, 0, 1.0, 0.0) * (not seen)}
        for copies, prior in kind.copies.items():
            if max(seen, default=0) > copies:
                found[copies] = np.zeros(MORE)
                continue
            left = [number for number in range(1, copies + 1) if number not in seen]
            free = len(left)  # copies that may still be read in this listing
            if known.reading is not None and known.frontier > kind.order:
                free = 0
            elif known.frontier == kind.order and known.lowest is not None:
                free = sum(number < known.lowest for number in left)
            elsewhere = max(0.0, hidden - here)
            found[copies] = prior * there * _remaining(len(left) - free, free, elsewhere, here)
        return found

    # --- the stopping rule -------------------------------------------------------------------------

    @property
    def _copies(self) -> int:
        return max((max(kind.copies) for kind in self._optional), default=1)

    @property
    def _most(self) -> int:
        """Optional kinds that a game can have."""
        return min(len(self._optional), max(self._wanted))

    @property
    def _widest(self) -> int:
        """Optional things that a game can have."""
        return max(self._wanted) + self._copies - 1

    def _sequence_weights(self) -> Array:
        """Probability of the kinds that were drawn, as a set, times that of stopping there.

        Of N kinds, a set of n with a given last one comes first with probability (n-1)! (N-n)! / N!. The
        generator stops after it if the things before the last kind were too few and now are enough; where
        all kinds are drawn and are too few, it stops as well.
        """
        n = len(self._optional)
        weights = np.zeros((self._most + 1, self._widest + 1, 1 + self._copies))
        for kinds in range(1, self._most + 1):
            log = math.lgamma(kinds) + math.lgamma(n - kinds + 1) - math.lgamma(n + 1)
            for things in range(self._widest + 1):
                for last in range(1, min(self._copies, things) + 1):
                    stops = sum(p for t, p in self._wanted.items() if things - last < t <= things)
                    weights[kinds, things, last] = math.exp(log) * stops
        if n <= self._most:
            for things in range(self._widest + 1):
                weights[n, things, 0] += sum(p for t, p in self._wanted.items() if t > things)
        return weights


def _kind(kind: str, receptacle_types: Sequence[str], goal: SceneGoal) -> Kind:
    look = goal.task_type == "look_at_obj_in_light"
    barred = barred_type(kind, goal)
    allowed = accepting_types(kind)
    pull = [
        attraction(kind, place) if place in allowed and place != barred else 0.0
        for place in receptacle_types
    ]
    few, many = copies_range(kind, goal)
    total = sum(pull)
    share = tuple(p / total for p in pull) if total else tuple(pull)
    copies = dict.fromkeys(range(few, many + 1), 1 / (many - few + 1))
    always = kind == goal.object_type or (look and kind == LAMP)
    return Kind(kind.lower(), share, copies, always)


def _wanted(receptacles: int, per_receptacle: tuple[float, float]) -> dict[int, float]:
    """Probability of each number of optional things that are enough: a uniform number, rounded."""
    low, high = (receptacles * factor for factor in per_receptacle)
    found = {}
    for count in range(round(low), round(high) + 1):
        part = min(high, count + 0.5) - max(low, count - 0.5)
        if part > 0:
            found[count] = part / (high - low)
    return found


def _remaining(away: int, free: int, elsewhere: float, here: float) -> Array:
    """[3]: ``away`` copies lie elsewhere, and of ``free`` ones none, one or more lie here."""
    none = elsewhere**free
    one = free * here * elsewhere ** (free - 1) if free else 0.0
    all_of_it = (elsewhere + here) ** free
    return float(elsewhere**away) * np.array([none, one, max(0.0, all_of_it - none - one)])


def _mixing(factor: Array) -> Array:
    """[3, 3]: what remains with another kind's share, from what remained without it."""
    none, one, more = factor
    return np.array([[none, one, more], [0.0, none, one + more], [0.0, 0.0, none + one + more]])
