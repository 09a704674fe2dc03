"""The facts that procedural ALFWorld games are made of: rooms, affordances, goals, engine texts.

Read from `assets/` (written by `data/build_alfworld_assets.py`) once per process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

Cell = tuple[int, int, int, int]
"""Place of the agent: x, z in 0.25 m cells, quarter turns, camera horizon in degrees."""
Position = tuple[float, float, float]
"""Metres in the room: x, y (height), z."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """One receptacle of a room."""

    type: str
    """PDDL spelling, such as "CounterTop\""""
    position: Position
    cell: Cell
    openable: bool


@dataclass(frozen=True, slots=True)
class Room:
    """One AI2-THOR room of ALFRED."""

    number: int
    kind: str
    """"kitchen", "living_room", "bedroom" or "bathroom\""""
    fittings: tuple[Fitting, ...]
    object_types: frozenset[str]
    """types of the things that lie in this room in AI2-THOR"""

    @property
    def receptacle_types(self) -> frozenset[str]:
        return frozenset(fitting.type for fitting in self.fittings)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that hold in every room; all types in PDDL spelling."""

    can_contain: Mapping[str, frozenset[str]]
    """object types that may be put into a receptacle type"""
    openable: frozenset[str]
    pickupable: frozenset[str]
    """object types that some receptacle can contain"""
    receptacle_objects: frozenset[str]
    """movable things that can hold things (bowl, pan, ...)"""
    affordances: Mapping[str, frozenset[str]]
    """object types by "heatable", "coolable", "cleanable", "sliceable", "toggleable\""""
    templates: Mapping[str, tuple[str, ...]]
    """the official wordings of a task type, with {obj}, {recep}, {toggle}"""
    goal_pddl: Mapping[str, str]
    """the goal section of a task type, with the same slots in PDDL spelling"""


UNSEEN_ROOMS = frozenset(
    number for first in (5, 204, 303, 404) for number in range(first, first + 30, 5)
)
"""Rooms of `valid_unseen`: every fifth, shifted so that the four rooms of the official
valid_unseen split (10, 219, 308, 424) are among them."""

STOVE_BURNERS = 4
"""burners of a stove: 152 of the 158 official kitchens on hand have four, the others six"""


@cache
def facts() -> Facts:
    """Affordances, containment and goals, for all rooms."""
    raw = _asset("facts")
    can_contain = _sets(raw["can_contain"])
    return Facts(
        can_contain=can_contain,
        pickupable=frozenset().union(*can_contain.values()),
        openable=frozenset(raw["openable"]),
        receptacle_objects=frozenset(raw["receptacle_objects"]),
        affordances=_sets(raw["affordances"]),
        templates={task: tuple(goal["templates"]) for task, goal in raw["goals"].items()},
        goal_pddl={task: goal["pddl"] for task, goal in raw["goals"].items()},
    )


@cache
def rooms() -> Mapping[int, Room]:
    """All 120 rooms by number."""
    raw = _asset("rooms")
    return {int(key): _room(int(key), row) for key, row in raw.items() if key.isdigit()}


@cache
def engine_texts() -> Mapping[str, str]:
    """`domain_put`, `grammar_put`, `domain_move`, `grammar_move`: what a game file carries along."""
    texts: dict[str, str] = _asset("engine")
    return texts


def _asset(name: str) -> dict[str, Any]:
    text = (files("paw_gym.envs.alfworld") / "assets" / f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def _sets(raw: Mapping[str, list[str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(value) for key, value in raw.items()}


def _room(number: int, row: Mapping[str, Any]) -> Room:
    openable = facts().openable
    fittings = [
        Fitting(kind, (x, y, z), (cell_x, cell_z, turns, horizon), kind in openable)
        for kind, x, y, z, cell_x, cell_z, turns, horizon in row["receptacles"]
    ]
    fittings += _fixtures(number, row["fixtures"], fittings)
    return Room(number, row["kind"], tuple(fittings), frozenset(row["objects"]))


def _fixtures(number: int, types: list[str], posed: list[Fitting]) -> Iterator[Fitting]:
    """Receptacles without a pose in the room's layout, not openable, as in official games: those that the
    layout names by type, and up to a handful of cabinets and drawers; the number fixes their places."""
    rng = random.Random(f"fixtures of room {number}")
    known = [fitting.type for fitting in posed]
    stuck = [kind for kind in ("Cabinet", "Drawer") if kind in known]
    extra = rng.choices(stuck, k=rng.randint(0, 2 + len(known) // 4)) if stuck else []
    for kind in types + extra:
        for _ in range(STOVE_BURNERS if kind == "StoveBurner" else 1):
            position, cell = random_place(rng)
            yield Fitting(kind, position, cell, False)


def random_place(rng: random.Random) -> tuple[Position, Cell]:
    """A made-up position and the cell to stand in, in the ranges of the real rooms."""
    x, z = rng.uniform(-4, 4), rng.uniform(-4, 4)
    position = (round(x, 2), round(rng.uniform(0, 2.2), 2), round(z, 2))
    return position, (round(x * 4), round(z * 4), rng.randrange(4), rng.choice((-30, 0, 30, 60)))
