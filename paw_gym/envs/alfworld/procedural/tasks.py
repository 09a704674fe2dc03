"""The goals that make sense in a room, how often they occur, and how ALFWorld words them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Set
from functools import cache

from paw_gym.envs.alfworld.procedural.rooms import UNSEEN_ROOMS, Room, facts, rooms
from paw_gym.envs.alfworld.procedural.scene import SceneGoal

LAMP = "DeskLamp"
"""the only lamp of the official games that stands in a receptacle, as the goal demands"""
LAMP_PLACES: Mapping[str, float] = {
    "SideTable": 3,
    "Desk": 2.5,
    "Dresser": 1.5,
    "Shelf": 0.3,
    "CoffeeTable": 0.1,
}
"""places of desk lamps in the official games (31, 22, 13, 3 and 1 of the 70 on hand)"""

TOOLS: Mapping[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "cleanable", "clean"),
    "pick_heat_then_place_in_recep": ("Microwave", "heatable", "hot"),
    "pick_cool_then_place_in_recep": ("Fridge", "coolable", "cool"),
}
"""receptacle type that does it, affordance the object needs, state that results"""

HOLDS_ONE = frozenset(
    {"CoffeeMachine", "ToiletPaperHanger", "TowelHolder", "HandTowelHolder", "StoveBurner"}
)
"""no pick_two goal for these: the engine would allow it, the room would not"""

KIND_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "pick_and_place_simple": {"bathroom": 3, "living_room": 2.5, "bedroom": 2.5, "kitchen": 2},
    "pick_two_obj_and_place": {"bathroom": 3, "living_room": 2.5, "bedroom": 2.5, "kitchen": 2},
    "look_at_obj_in_light": {"bedroom": 4, "living_room": 1},
    "pick_clean_then_place_in_recep": {"kitchen": 3, "bathroom": 1},
}
"""Share of the room kinds in a task type, after the official games (81, 69, 32 and 64 of them on
hand), with kitchens raised to a fifth where they are rare. Types left out have kitchens only."""


def sample_room(task_type: str, unseen: bool, lamp_in_place: bool, rng: random.Random) -> Room:
    """Sample the kind of room, then a room of that kind in which the task can be set."""
    weights = KIND_WEIGHTS.get(task_type, {"kitchen": 1})
    kind = rng.choices(list(weights), list(weights.values()))[0]
    return rng.choice(rooms_for(task_type, kind, unseen, lamp_in_place))


@cache
def rooms_for(task_type: str, kind: str, unseen: bool, lamp_in_place: bool) -> tuple[Room, ...]:
    return tuple(
        room
        for room in rooms().values()
        if room.kind == kind
        and (room.number in UNSEEN_ROOMS) == unseen
        and any(goal_pairs(task_type, room.receptacle_types, room.object_types))
        and not (
            task_type == "look_at_obj_in_light" and lamp_in_place and LAMP not in room.object_types
        )
    )


def goal_pairs(
    task_type: str, receptacle_types: Set[str], object_types: Set[str]
) -> Iterator[tuple[str, str]]:
    """All (object type, target type) goals of a task type, sorted, that these types allow.

    The object can always lie somewhere other than in a receptacle of the target type.
    """
    if task_type == "look_at_obj_in_light":
        if receptacle_types & LAMP_PLACES.keys():
            movable = object_types & facts().pickupable
            yield from ((kind, LAMP) for kind in sorted(movable) if _places(kind, receptacle_types))
        return
    tool, affordance, _ = TOOLS.get(task_type, (None, None, None))
    if tool is not None and tool not in receptacle_types:
        return
    allowed = facts().affordances[affordance] if affordance else facts().pickupable
    for target in sorted(
        receptacle_types - {tool} - {"BathtubBasin" if tool == "SinkBasin" else ""}
    ):
        if task_type == "pick_two_obj_and_place" and target in HOLDS_ONE:
            continue
        for kind in sorted(object_types & allowed & facts().can_contain.get(target, frozenset())):
            if _places(kind, receptacle_types - {target}):
                yield kind, target


def _places(kind: str, receptacle_types: Set[str]) -> list[str]:
    contain = facts().can_contain
    return [place for place in receptacle_types if kind in contain.get(place, frozenset())]


def sample_goal(
    task_type: str,
    receptacle_types: frozenset[str],
    object_types: frozenset[str],
    rng: random.Random,
) -> SceneGoal:
    """Sample the target type, then an object type that may go there, then the wording."""
    pairs = _pairs(task_type, receptacle_types, object_types)
    target = rng.choice(sorted(pairs))
    kind = rng.choice(pairs[target])
    template = rng.choice(facts().templates[task_type])
    words = {"obj": kind.lower(), "recep": target.lower(), "toggle": target.lower()}
    return SceneGoal(task_type, kind, target, template.format(**words) + ".")


@cache
def _pairs(
    task_type: str, receptacle_types: frozenset[str], object_types: frozenset[str]
) -> dict[str, list[str]]:
    by_target: dict[str, list[str]] = {}
    for kind, target in goal_pairs(task_type, receptacle_types, object_types):
        by_target.setdefault(target, []).append(kind)
    return by_target


def goal_pddl(goal: SceneGoal) -> str:
    """The `(:goal ...)` section."""
    text = facts().goal_pddl[goal.task_type]
    return text.format(obj=goal.object_type, recep=goal.target_type, toggle=goal.target_type)
