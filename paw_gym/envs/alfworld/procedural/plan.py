"""Plan a short way to a goal when everything is known: who is where, what is open, what is hot.

Greedy, over a plain description of the world (`World`) that a scene and an engine can give alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from paw_gym.envs.alfworld.native.compiled import bits
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.problem import Goal
from paw_gym.envs.alfworld.procedural.placement import CAN_BE_TAKEN
from paw_gym.envs.alfworld.procedural.rooms import facts
from paw_gym.envs.alfworld.procedural.scene import Scene, displayed

TOOL_VERBS = {
    "clean": ("clean", frozenset({"sinkbasin", "sink"})),
    "hot": ("heat", frozenset({"microwave"})),
    "cool": ("cool", frozenset({"fridge"})),
}
"""wanted state -> verb, receptacle types that bring it about"""
PUT_COMMANDS = {"put": "put {thing} in/on {place}", "move": "move {thing} to {place}"}
"""by grammar version"""


class NoPlanError(ValueError):
    """The goal cannot be reached from this state; the message states what is lacking."""


@dataclass(slots=True)
class Place:
    """A receptacle."""

    type: str
    location: int
    """equal for receptacles that are used from the same spot"""
    closed: bool


@dataclass(slots=True)
class Item:
    """An object."""

    type: str
    inside: str | None
    """name of its receptacle; None while held or out of reach"""
    takeable: bool = True
    states: set[str] = field(default_factory=set)
    """those of "clean", "hot", "cool" that hold"""


@dataclass(slots=True)
class World:
    """All that matters for the six goals; names and types as displayed."""

    places: dict[str, Place]
    items: dict[str, Item]
    accepts: Mapping[str, frozenset[str]]
    """item types by place type"""
    location: int | None
    """of the agent; None: no receptacle is there"""
    held: str | None
    lit: set[str]
    """lamps that are on"""
    grammar: str
    """"put" or "move\""""


def solve(engine: NativeEngine) -> list[str]:
    """A short way to the goal from an engine's present state, which stays as it is."""
    return plan(world_of_engine(engine), engine.game.goal)


def plan(world: World, goal: Goal) -> list[str]:
    """Commands from this state to the goal; empty when it is reached. ``world`` is used up."""
    commands = _light(world, goal) if goal.lamp_type else _place(world, goal)
    return list(commands)


def world_of_scene(scene: Scene, grammar: str) -> World:
    """The start of a procedural game."""
    names = displayed([r.id for r in scene.receptacles] + [thing.id for thing in scene.things])
    cells = {cell: index for index, cell in enumerate({r.cell for r in scene.receptacles})}
    takeable = facts().pickupable | CAN_BE_TAKEN
    return World(
        places={
            names[r.id]: Place(r.type.lower(), cells[r.cell], r.openable) for r in scene.receptacles
        },
        items={
            names[thing.id]: Item(
                thing.type.lower(),
                names[scene.receptacles[thing.inside].id],
                thing.type in takeable,
                {"cool"} if thing.cool else set(),
            )
            for thing in scene.things
        },
        accepts=_accepts(),
        location=None,
        held=None,
        lit=set(),
        grammar=grammar,
    )


@cache
def _accepts() -> Mapping[str, frozenset[str]]:
    return {
        place.lower(): frozenset(kind.lower() for kind in kinds)
        for place, kinds in facts().can_contain.items()
    }


def world_of_engine(engine: NativeEngine) -> World:
    """The present state of a game, without receptacles that no location serves and what is in them."""
    game = engine.game
    places = {
        game.receptacles[r]: Place(
            game.receptacle_types[r], location, bool(game.openable & ~engine.opened & 1 << r)
        )
        for r, location in enumerate(game.receptacle_location)
        if location is not None
    }
    inside: dict[int, str] = {}
    for r, content in enumerate(engine.contents):
        if game.receptacle_location[r] is not None:
            inside.update(dict.fromkeys(bits(content), game.receptacles[r]))
    states = {"clean": engine.clean, "hot": engine.hot, "cool": engine.cool}
    items = {
        name: Item(
            game.object_types[o],
            None if o == engine.held else inside.get(o),
            bool(game.pickupable >> o & 1),
            {state for state, mask in states.items() if mask >> o & 1},
        )
        for o, name in enumerate(game.objects)
    }
    return World(
        places=places,
        items=items,
        accepts={
            game.receptacle_types[r]: frozenset(game.object_types[o] for o in bits(mask))
            for r, mask in enumerate(game.accepts)
        },
        location=engine.location,
        held=game.objects[engine.held] if engine.held >= 0 else None,
        lit={game.objects[o] for o in bits(engine.toggled)},
        grammar=game.grammar.version,
    )


def _light(world: World, goal: Goal) -> Iterator[str]:
    yield from _obtain(
        world, [n for n, i in world.items.items() if i.type == goal.object_type], goal
    )
    lamps = [n for n, i in world.items.items() if i.type == goal.lamp_type and i.inside]
    if not lamps:
        raise NoPlanError(f"no {goal.lamp_type} stands in a receptacle")
    lamp = min(lamps, key=lambda name: not _at(world, world.items[name].inside))
    place = world.items[lamp].inside
    assert place is not None, "lamps were chosen for being inside something"
    yield from _go(world, place)
    if not world.lit & set(lamps):
        world.lit.add(lamp)
        yield f"use {lamp}"


def _place(world: World, goal: Goal) -> Iterator[str]:
    targets = [n for n, p in world.places.items() if p.type == goal.receptacle_type]
    if not targets:
        raise NoPlanError(f"no {goal.receptacle_type} in the room")

    def done(target: str) -> list[str]:
        right = [(n, i) for n, i in world.items.items() if i.type == goal.object_type]
        return [n for n, i in right if i.inside == target and goal.state in (None, *i.states)]

    target = min(targets, key=lambda name: (-len(done(name)), world.places[name].closed))
    while len(ready := done(target)) < goal.count:
        wanted = [n for n, i in world.items.items() if i.type == goal.object_type]
        yield from _obtain(world, [name for name in wanted if name not in ready], goal)
        yield from _treat(world, goal)
        yield from _put(world, target)


def _obtain(world: World, wanted: list[str], goal: Goal) -> Iterator[str]:
    """Have one of the wanted items in hand."""
    if world.held in wanted:
        return
    if world.held is not None:
        yield from _put(world, _anywhere(world, world.items[world.held].type, goal))
    within_reach = [n for n in wanted if world.items[n].inside and world.items[n].takeable]
    if not within_reach:
        raise NoPlanError(f"no {goal.object_type} left to take")
    name = min(within_reach, key=lambda name: _effort(world, world.items[name], goal))
    place = world.items[name].inside
    assert place is not None, "items within reach are inside something"
    yield from _visit(world, place)
    world.items[name].inside, world.held = None, name
    yield f"take {name} from {place}"


def _effort(world: World, item: Item, goal: Goal) -> int:
    """About how many commands it takes to fetch an item and treat it."""
    assert item.inside is not None
    place = world.places[item.inside]
    untreated = goal.state is not None and goal.state not in item.states
    tool_here = goal.state is not None and place.type in TOOL_VERBS[goal.state][1]
    treatment = untreated and (1 if tool_here else 2)
    return (place.location != world.location) + place.closed + treatment


def _treat(world: World, goal: Goal) -> Iterator[str]:
    """Clean, heat or cool what is held, if the goal asks for it."""
    if goal.state is None or world.held is None or goal.state in world.items[world.held].states:
        return
    verb, types = TOOL_VERBS[goal.state]
    tools = [n for n, p in world.places.items() if p.type in types]
    if not tools:
        raise NoPlanError(f"nothing in the room to {verb} with")
    tool = min(tools, key=lambda name: not _at(world, name))
    yield from _go(world, tool)
    world.items[world.held].states.add(goal.state)
    yield f"{verb} {world.held} with {tool}"


def _put(world: World, place: str) -> Iterator[str]:
    assert world.held is not None, "something must be in hand"
    if world.items[world.held].type not in world.accepts.get(world.places[place].type, frozenset()):
        raise NoPlanError(f"{place} does not accept {world.held}")
    yield from _visit(world, place)
    yield PUT_COMMANDS[world.grammar].format(thing=world.held, place=place)
    world.items[world.held].inside, world.held = place, None


def _anywhere(world: World, kind: str, goal: Goal) -> str:
    """The easiest place to put something down that is in the way, off the target if possible."""
    places = [n for n, p in world.places.items() if kind in world.accepts.get(p.type, frozenset())]
    if not places:
        raise NoPlanError(f"no place accepts the {kind} that is held")

    def trouble(name: str) -> tuple[int, bool]:
        place = world.places[name]
        return (not _at(world, name)) + place.closed, place.type == goal.receptacle_type

    return min(places, key=trouble)


def _at(world: World, place: str | None) -> bool:
    return place is not None and world.places[place].location == world.location


def _go(world: World, place: str) -> Iterator[str]:
    if not _at(world, place):
        world.location = world.places[place].location
        yield f"go to {place}"


def _visit(world: World, place: str) -> Iterator[str]:
    """Stand at a receptacle with its door open."""
    yield from _go(world, place)
    if world.places[place].closed:
        world.places[place].closed = False
        yield f"open {place}"
