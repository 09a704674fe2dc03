"""The room as the opening text tells it, and the receptacles that can be opened.

The opening names every receptacle. Which of the official rooms they were taken from is not told; it
decides the kinds of things there are, and how many of the room's cabinets are mere fronts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paw_gym.envs.alfworld.procedural.placement import (
    MODIFIED_RECEPTACLES,
    needed_types,
    types_of_kind,
)
from paw_gym.envs.alfworld.procedural.rooms import Room, rooms
from paw_gym.envs.alfworld.procedural.scene import SceneGoal
from paw_gym.envs.alfworld.procedural.tasks import (
    KIND_WEIGHTS,
    goal_pairs,
    rooms_for,
)


@dataclass(frozen=True)
class Openness:
    """The receptacles of each type that were seen to open, or not to."""

    openable: Counter[str]
    fixed: Counter[str]

    @classmethod
    def unseen(cls) -> Openness:
        return cls(Counter(), Counter())

    def with_one(self, kind: str, openable: bool) -> Openness:
        """After another receptacle of a type was seen."""
        one = Counter([kind])
        if openable:
            return Openness(self.openable + one, self.fixed)
        return Openness(self.openable, self.fixed + one)


class Rooms:
    """Posterior over the official room that a modified one was made of.

    Args:
        receptacle_types: of the opening text, PDDL spelling.
        goal: of the game.
        unseen: of the split ``valid_unseen``.
        asked: number of receptacles that was asked for; ``None``: sampled.

    Raises:
        ValueError: no room has such receptacles.
    """

    def __init__(
        self,
        receptacle_types: Sequence[str],
        goal: SceneGoal,
        unseen: bool,
        asked: int | None = None,
    ) -> None:
        types = Counter(receptacle_types)
        found = {
            number: p
            for number, room in rooms().items()
            if (p := _room_weight(room, goal, unseen) * _opening(room, types, goal, asked)) > 0
        }
        if not found:
            raise ValueError(
                f"No modified room has these receptacles: {', '.join(sorted(types.elements()))}."
            )
        total = sum(found.values())
        self._weights = {number: p / total for number, p in found.items()}

    def by_kind(self, known: Openness) -> dict[str, float]:
        """Probability of what is known of openness, jointly with the kind of room."""
        found: dict[str, float] = {}
        for number, weight in self._weights.items():
            room = rooms()[number]
            found[room.kind] = found.get(room.kind, 0.0) + weight * _openness(room, known)
        return {kind: weight for kind, weight in found.items() if weight > 0}


def _room_weight(room: Room, goal: SceneGoal, unseen: bool) -> float:
    """Probability of this room and goal (``sample_room``, ``sample_goal``)."""
    kinds = KIND_WEIGHTS.get(goal.task_type, {"kitchen": 1})
    if room.kind not in kinds:
        return 0.0
    possible = rooms_for(goal.task_type, room.kind, unseen, False)
    if room not in possible:
        return 0.0
    targets: dict[str, list[str]] = {}
    for kind, target in goal_pairs(goal.task_type, room.receptacle_types, types_of_kind(room.kind)):
        targets.setdefault(target, []).append(kind)
    if goal.object_type not in targets.get(goal.target_type, []):
        return 0.0
    share = kinds[room.kind] / sum(kinds.values()) / len(possible)
    return share / len(targets) / len(targets[goal.target_type])


def _opening(room: Room, types: Mapping[str, int], goal: SceneGoal, asked: int | None) -> float:
    """Probability of the receptacles' types (``modified_receptacles``)."""
    there = Counter(fitting.type for fitting in room.fittings)
    if any(count > there[kind] for kind, count in types.items()):
        return 0.0
    total = 0.0
    for needed, p in _needed(there, goal):
        if any(count > types.get(kind, 0) for kind, count in needed.items()):
            continue
        rest = there - needed
        missing = sum(types.values()) - needed.total()
        ways = math.prod(
            math.comb(rest[kind], count - needed[kind]) for kind, count in types.items()
        )
        total += p * ways / math.comb(rest.total(), missing)
    return total * _size(sum(types.values()), there.total(), asked)


def _needed(there: Counter[str], goal: SceneGoal) -> Iterator[tuple[Counter[str], float]]:
    """Types of the receptacles that the goal needs, with their probability."""
    drawn: dict[tuple[tuple[str, int], ...], float] = {(): 1.0}
    for group in needed_types(goal):
        following: dict[tuple[tuple[str, int], ...], float] = {}
        size = sum(there[kind] for kind in group)
        for so_far, p in drawn.items():
            for kind in sorted(group & there.keys()):
                before = dict(so_far).get(kind, 0)
                # the same fitting again, or another one of the type
                for count, ways in ((before, before), (before + 1, there[kind] - before)):
                    if ways:
                        new = tuple(sorted({**dict(so_far), kind: count}.items()))
                        following[new] = following.get(new, 0.0) + p * ways / size
        drawn = following
    yield from ((Counter(dict(needed)), p) for needed, p in drawn.items())


def _size(count: int, available: int, asked: int | None) -> float:
    few, many = MODIFIED_RECEPTACLES
    wanted = range(few, many + 1) if asked is None else [asked]
    return sum(min(number, available) == count for number in wanted) / len(wanted)


def _openness(room: Room, known: Openness) -> float:
    """Receptacles of a type are a random subset of the room's, so they are drawn without replacement."""
    p = 1.0
    for kind in known.openable.keys() | known.fixed.keys():
        opens = sum(f.openable for f in room.fittings if f.type == kind)
        fixed = sum(not f.openable for f in room.fittings if f.type == kind)
        a, b = known.openable[kind], known.fixed[kind]
        p *= math.perm(opens, a) * math.perm(fixed, b) / math.perm(opens + fixed, a + b)
    return p
