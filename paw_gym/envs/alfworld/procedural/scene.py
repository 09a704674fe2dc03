"""One procedural game before it is written down: receptacles, things, start, goal.

Also what is derived from it and must agree with the engines: display names and placement hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from paw_gym.envs.alfworld.native.compiled import display_names
from paw_gym.envs.alfworld.procedural.rooms import Cell, Position


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

    def names(self) -> dict[str, str]:
        """Display name ("cabinet 3") of every receptacle and thing, by PDDL name."""
        return _names([r.id for r in self.receptacles] + [thing.id for thing in self.things])

    def placement_hash(self) -> str:
        """SHA-256 of room and sorted (object type, receptacle as displayed) pairs, in hex.

        It can be computed for any game, official ones included, and says nothing about the task:
        two games with different hashes differ in what lies where.
        """
        names = _names([r.id for r in self.receptacles])
        places = [names[r.id] for r in self.receptacles]
        return placement_hash(self.room, ((t.type, places[t.inside]) for t in self.things))


def _names(ids: list[str]) -> dict[str, str]:
    names = display_names(entity.lower() for entity in ids)
    return {entity: names[entity.lower()] for entity in ids}


def placement_hash(room: int, pairs: Iterable[tuple[str, str]]) -> str:
    """See `Scene.placement_hash`; pairs are (object type, receptacle's display name)."""
    lines = sorted(f"{kind.lower()}@{place}" for kind, place in pairs)
    return hashlib.sha256("\n".join([f"room {room}", *lines]).encode()).hexdigest()


def entity_id(kind: str, position: Position) -> str:
    """AI2-THOR's `Type|x|y|z` in ALFWorld's PDDL spelling."""
    suffix = ""
    if kind.endswith("Basin"):
        kind, suffix = kind.removesuffix("Basin"), f"_bar_{kind}"
    return kind + "".join(f"_bar_{_metres(value)}" for value in position) + suffix


def _metres(value: float) -> str:
    sign = "minus" if value < 0 else "plus"
    return f"_{sign}_{abs(value):05.2f}".replace(".", "_dot_")


def cell_id(cell: Cell) -> str:
    return "loc" + "".join(
        f"_bar_{value}" if value >= 0 else f"_bar__minus_{-value}" for value in cell
    )
