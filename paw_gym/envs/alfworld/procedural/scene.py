"""One procedural game before it is written down: receptacles, things, start, and a goal that makes sense.

Also what is derived from it and must agree with the engines: display names and placement hash.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cache

from paw_gym.envs.alfworld.native.compiled import display_names
from paw_gym.envs.alfworld.native.problem import TOOLS
from paw_gym.envs.alfworld.procedural.rooms import UNSEEN_ROOMS, Cell, Position, Room, facts, rooms


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for things."""

    id: str
    """PDDL name, such as "Cabinet_bar__plus_00_dot_68_bar_..."; its position is part of it"""
    type: str
    cell: Cell
    openable: bool


@dataclass(frozen=True, slots=True)
class Thing:
    """An object, lying somewhere."""

    id: str
    type: str
    inside: int
    """index of its receptacle in `Scene.receptacles`"""
    cool: bool = False


@dataclass(frozen=True, slots=True)
class SceneGoal:
    """A goal with its wording; types in PDDL spelling."""

    task_type: str
    object_type: str
    target_type: str
    """receptacle type, or lamp type for look_at_obj_in_light"""
    sentence: str
    """as it stands after "Your task is to: ", with the full stop"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A room with everything in it, and what is to be done there."""

    room: int
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    start: Cell
    goal: SceneGoal

    def placement_hash(self) -> str:
        names = displayed([receptacle.id for receptacle in self.receptacles])
        lies_in = ((t.type, names[self.receptacles[t.inside].id]) for t in self.things)
        return placement_hash(self.room, lies_in)


def displayed(ids: list[str]) -> dict[str, str]:
    """Display name ("cabinet 3") of receptacles and things, by PDDL name."""
    names = display_names(entity.lower() for entity in ids)
    return {entity: names[entity.lower()] for entity in ids}


def placement_hash(room: int, pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 of room and sorted (object type, receptacle as displayed) pairs, in hex, for any game."""
    lines = sorted(f"{kind.lower()}@{place}" for kind, place in pairs)
    return hashlib.sha256("\n".join([f"room {room}", *lines]).encode()).hexdigest()


def entity_id(kind: str, position: Position) -> str:
    """AI2-THOR's `Type|x|y|z` in ALFWorld's PDDL spelling."""
    suffix = ""
    if kind.endswith("Basin"):
        kind, suffix = kind.removesuffix("Basin"), f"_bar_{kind}"
    signed = [("minus" if value < 0 else "plus", abs(value)) for value in position]
    metres = "".join(f"_bar__{sign}_{value:05.2f}" for sign, value in signed)
    return kind + metres.replace(".", "_dot_") + suffix


def cell_id(cell: Cell) -> str:
    return "loc" + "".join(
        f"_bar_{value}" if value >= 0 else f"_bar__minus_{-value}" for value in cell
    )


# --- goals -------------------------------------------------------------------------------------------

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
        and goals(task_type, room.receptacle_types, room.object_types)
        and not (
            task_type == "look_at_obj_in_light" and lamp_in_place and LAMP not in room.object_types
        )
    )


@cache
def goals(
    task_type: str, receptacle_types: frozenset[str], object_types: frozenset[str]
) -> dict[str, list[str]]:
    """The goals of a task type that these types allow: object types, sorted, by target type. The object can
    always lie somewhere other than in a receptacle of the target type."""
    known, contain = facts(), facts().can_contain

    def lying(kinds: Set[str], places: Set[str]) -> list[str]:
        return sorted(
            kind for kind in kinds if any(kind in contain.get(place, ()) for place in places)
        )

    if task_type == "look_at_obj_in_light":
        kinds = lying(object_types & known.pickupable, receptacle_types)
        return {LAMP: kinds} if kinds and receptacle_types & LAMP_PLACES.keys() else {}
    targets, allowed = receptacle_types, known.pickupable
    if task_type in TOOLS:
        tool, affordance, _ = TOOLS[task_type]
        allowed = known.affordances[affordance]
        targets = targets - {tool, *(["BathtubBasin"] if tool == "SinkBasin" else [])}
        if tool not in receptacle_types:
            return {}
    elif task_type == "pick_two_obj_and_place":
        targets = targets - HOLDS_ONE
    found = {
        target: lying(
            object_types & allowed & contain.get(target, frozenset()), receptacle_types - {target}
        )
        for target in targets
    }
    return {target: kinds for target, kinds in found.items() if kinds}


def sample_goal(
    task_type: str,
    receptacle_types: frozenset[str],
    object_types: frozenset[str],
    rng: random.Random,
) -> SceneGoal:
    """Sample the target type, then an object type that may go there, then the wording."""
    pairs = goals(task_type, receptacle_types, object_types)
    target = rng.choice(sorted(pairs))
    kind = rng.choice(pairs[target])
    template = rng.choice(facts().templates[task_type])
    words = {"obj": kind.lower(), "recep": target.lower(), "toggle": target.lower()}
    return SceneGoal(task_type, kind, target, template.format(**words) + ".")


def goal_pddl(goal: SceneGoal) -> str:
    """The `(:goal ...)` section."""
    text = facts().goal_pddl[goal.task_type]
    return text.format(obj=goal.object_type, recep=goal.target_type, toggle=goal.target_type)
