"""Furnish a room and put things into it: the random part of a procedural game.

Two kinds of rooms: `real` ones keep the receptacles, positions and standing places of an AI2-THOR
room; `modified` ones keep a subset of 6 to 14 of them, at new positions (so they are numbered
anew), with things that rooms of that kind have elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache

from paw_gym.envs.alfworld.native.problem import TOOLS
from paw_gym.envs.alfworld.procedural.rooms import (
    Fitting,
    Position,
    Room,
    facts,
    random_place,
    rooms,
)
from paw_gym.envs.alfworld.procedural.scene import (
    LAMP,
    LAMP_PLACES,
    Receptacle,
    SceneGoal,
    Thing,
    entity_id,
)

SCENERY = {
    "HousePlant": ("CounterTop", "SideTable", "DiningTable", "Shelf", "CoffeeTable", "Desk"),
    "PaperTowelRoll": ("CounterTop", "DiningTable", "GarbageCan", "Shelf"),
    "TeddyBear": ("Bed",),
    "Television": ("TVStand", "Dresser", "CoffeeTable"),
    LAMP: tuple(sorted(LAMP_PLACES)),
}
"""Things of the official games that no receptacle accepts, and where they stand there."""
CAN_BE_TAKEN = frozenset({"PaperTowelRoll", "TeddyBear"})
"""scenery that can be picked up (and then put nowhere), as in the official games"""
LONERS = frozenset({"HandTowel", "Towel", "Plunger", "WateringCan", "BasketBall", "BaseballBat"})
"""types of which the official games mostly have one"""

ATTRACTION = {
    "BathtubBasin": 2.4,
    "Bed": 2.0,
    "Cabinet": 0.4,
    "Cart": 1.8,
    "CoffeeMachine": 3.3,
    "CoffeeTable": 1.6,
    "CounterTop": 1.7,
    "Desk": 2.0,
    "DiningTable": 2.5,
    "Drawer": 0.4,
    "Dresser": 1.8,
    "Fridge": 1.8,
    "HandTowelHolder": 6.5,
    "Safe": 1.2,
    "Sofa": 2.0,
    "StoveBurner": 3.2,
    "Toilet": 1.4,
}
"""How often a thing lies in a receptacle of a type, divided by what an even choice among all that
accept the thing would give. Measured on the 10,277 such placements of the 340 solvable official
games on hand; 0.6 to 1.1 for the types left out."""
ATTRACTION_OF_OTHERS = 0.8

MODIFIED_RECEPTACLES = (6, 14)
"""fewest and most receptacles of a modified room"""
COPIES = (1, 3)
"""fewest and most things of a type (ALFRED's MAX_NUM_OF_OBJ_INSTANCES)"""
COPIES_OF_TARGET = (1, 4)
"""fewest and most things of the goal's type (ALFRED's PICKUP_REPEAT_MAX)"""
SHARED_CELL = 0.1
"""share of a modified room's receptacles that are used from the place of another one: 660 of 7,300
places in the official games serve two receptacles"""


def modified_receptacles(room: Room, goal: SceneGoal, rng: random.Random) -> tuple[Receptacle, ...]:
    """A subset of the room's receptacles, moved, with what the goal needs among them."""
    chosen: list[Fitting] = []
    for group in _needed_types(goal):
        fitting = rng.choice([f for f in room.fittings if f.type in group])
        if fitting not in chosen:
            chosen.append(fitting)
    rest = [fitting for fitting in room.fittings if fitting not in chosen]
    missing = rng.randint(*MODIFIED_RECEPTACLES) - len(chosen)
    chosen += rng.sample(rest, min(missing, len(rest)))
    moved: list[Fitting] = []
    for fitting in chosen:
        position, cell = random_place(rng)
        if moved and rng.random() < SHARED_CELL:
            cell = rng.choice(moved).cell
        moved.append(replace(fitting, position=position, cell=cell))
    return as_receptacles(moved)


def _needed_types(goal: SceneGoal) -> list[Set[str]]:
    """Receptacle types of which the goal needs one each: target (or a lamp's place), tool, and somewhere
    else for the object, which comes last."""
    look = goal.task_type == "look_at_obj_in_light"
    groups: list[Set[str]] = [LAMP_PLACES.keys() if look else {goal.target_type}]
    if goal.task_type in TOOLS:
        groups.append({TOOLS[goal.task_type][0]})
    contain = facts().can_contain
    groups.append({t for t in contain if goal.object_type in contain[t]} - {goal.target_type})
    return groups


def as_receptacles(fittings: Sequence[Fitting]) -> tuple[Receptacle, ...]:
    """The receptacles of a game, with ids of their own."""
    taken: set[str] = set()
    return tuple(
        Receptacle(_free_id(f.type, f.position, taken), f.type, f.cell, f.openable)
        for f in fittings
    )


def _free_id(kind: str, position: Position, taken: set[str]) -> str:
    """Makes an id; if it is taken, the thing moves up by a centimetre."""
    x, y, z = position
    while (name := entity_id(kind, (x, y, z))) in taken:
        y += 0.01
    taken.add(name)
    return name


def lay_things(
    receptacles: Sequence[Receptacle],
    object_types: Set[str],
    goal: SceneGoal,
    most: int | None,
    rng: random.Random,
) -> tuple[Thing, ...]:
    """Lay out things of the given types so that the goal can be reached and is not yet.

    For tasks without a change of state, no thing of the goal's type starts in the target type; for
    the others one may, as in the official games, where it is then not yet clean, hot or cool. Things
    of the goal's type that start in a fridge are cool, as in those games.
    """
    taken: set[str] = set()
    things: list[Thing] = []

    def lay(kind: str) -> None:
        """Lays all things of one type, if there is a place for them."""
        wanted = kind == goal.object_type
        barred = goal.target_type if wanted and goal.task_type not in TOOLS else ""
        allowed = accepting_types(kind) - {barred}
        places = [i for i, receptacle in enumerate(receptacles) if receptacle.type in allowed]
        weights = [attraction(kind, receptacles[i].type) for i in places]
        few, many = _copies(kind, goal)
        for _ in range((few if few == many else rng.randint(few, many)) if places else 0):
            inside = rng.choices(places, weights)[0]
            position = random_place(rng)[0]
            cool = wanted and receptacles[inside].type == "Fridge"
            cool = cool and kind in facts().affordances["coolable"]
            things.append(Thing(_free_id(kind, position, taken), kind, inside, cool))

    lay(goal.object_type)
    if goal.task_type == "look_at_obj_in_light":
        lay(LAMP)
    enough = None if most is None else len(things) + most
    others = sorted(object_types - {goal.object_type, LAMP})
    rng.shuffle(others)
    for kind in others:
        if enough is not None and len(things) >= enough:
            break
        lay(kind)
    return tuple(things)


def _copies(kind: str, goal: SceneGoal) -> tuple[int, int]:
    """Fewest and most things of a type in a game that has any."""
    if kind == goal.object_type:
        few, many = COPIES_OF_TARGET
        return (2 if goal.task_type == "pick_two_obj_and_place" else few), many
    return (1, 1) if kind in LONERS or kind in SCENERY else COPIES


@cache
def accepting_types(kind: str) -> frozenset[str]:
    """Receptacle types in which things of a type are laid."""
    if kind in SCENERY:
        return frozenset(SCENERY[kind])
    return frozenset(place for place, kinds in facts().can_contain.items() if kind in kinds)


def attraction(kind: str, place: str) -> float:
    """How much a receptacle type attracts things of a type that it accepts; only ratios count."""
    if kind == LAMP:
        return LAMP_PLACES[place]
    return ATTRACTION.get(place, ATTRACTION_OF_OTHERS)


@cache
def types_of_kind(kind: str) -> frozenset[str]:
    """Types of things that rooms of this kind have anywhere."""
    return frozenset().union(*(room.object_types for room in rooms().values() if room.kind == kind))
