"""Describe a scene, or an engine in the middle of a game, as the planner's `World`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.procedural.placement import CAN_BE_TAKEN
from paw_gym.envs.alfworld.procedural.plan import Item, Place, World
from paw_gym.envs.alfworld.procedural.rooms import facts
from paw_gym.envs.alfworld.procedural.scene import Scene


def world_of_scene(scene: Scene, grammar: str) -> World:
    """The start of a procedural game."""
    names = scene.names()
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
    """The present state of a game, procedural or official.

    Receptacles that no location serves and objects in them are left out.
    """
    game = engine.game
    places = {
        game.receptacles[r]: Place(
            game.receptacle_types[r],
            location,
            bool(game.openable >> r & 1),
            bool(engine.opened >> r & 1),
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
        accepts=_accepted_types(game),
        location=engine.location,
        held=game.objects[engine.held] if engine.held >= 0 else None,
        lit={game.objects[o] for o in bits(engine.toggled)},
        grammar=game.grammar_version,
    )


def _accepted_types(game: CompiledGame) -> dict[str, frozenset[str]]:
    return {
        game.receptacle_types[r]: frozenset(game.object_types[o] for o in bits(mask))
        for r, mask in enumerate(game.accepts)
    }
