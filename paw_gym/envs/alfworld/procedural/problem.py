"""Write a scene down as PDDL: the `pddl_problem` of a `game.tw-pddl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from paw_gym.envs.alfworld.procedural.placement import CAN_BE_TAKEN, SCENERY
from paw_gym.envs.alfworld.procedural.rooms import facts
from paw_gym.envs.alfworld.procedural.scene import Scene, cell_id
from paw_gym.envs.alfworld.procedural.tasks import goal_pddl

AGENT = "agent1"
Fact = tuple[str, ...]


def problem_text(scene: Scene, name: str) -> str:
    """The whole `(define (problem ...))` in ALFWorld's spelling.

    Args:
        name: what the problem calls itself; a word.
    """
    objects = "\n".join(f"    {entity} - {kind}" for entity, kind in _objects(scene).items())
    init = "\n".join(f"    ({' '.join(fact)})" for fact in _init(scene))
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n{init}\n)\n{goal_pddl(scene.goal)}\n)\n"
    )


def _objects(scene: Scene) -> dict[str, str]:
    """Everything declared, with its PDDL type."""
    declared = {AGENT: "agent", cell_id(scene.start): "location"}
    for receptacle in scene.receptacles:
        declared[receptacle.id] = "receptacle"
        declared[cell_id(receptacle.cell)] = "location"
        declared[f"{receptacle.type}Type"] = "rtype"
    for thing in scene.things:
        declared[thing.id] = "object"
    for fact in _can_contain(scene):
        declared[fact[2]] = "otype"
    for thing in scene.things:
        declared[f"{thing.type}Type"] = "otype"
    return declared


def _init(scene: Scene) -> Iterator[Fact]:
    yield "atLocation", AGENT, cell_id(scene.start)
    for receptacle in scene.receptacles:
        yield "receptacleType", receptacle.id, f"{receptacle.type}Type"
        yield "receptacleAtLocation", receptacle.id, cell_id(receptacle.cell)
        if receptacle.openable:
            yield "openable", receptacle.id
    yield from _can_contain(scene)
    for thing in scene.things:
        receptacle = scene.receptacles[thing.inside]
        yield "objectType", thing.id, f"{thing.type}Type"
        yield "objectAtLocation", thing.id, cell_id(receptacle.cell)
        yield "inReceptacle", thing.id, receptacle.id
        yield from ((predicate, thing.id) for predicate in _properties()[thing.type])
        if thing.cool:
            yield "isCool", thing.id


def _can_contain(scene: Scene) -> Iterator[Fact]:
    """For the receptacle types in the scene, restricted to the thing types in it."""
    present = {thing.type for thing in scene.things}
    for place in dict.fromkeys(receptacle.type for receptacle in scene.receptacles):
        for kind in sorted(present & facts().can_contain.get(place, frozenset())):
            yield "canContain", f"{place}Type", f"{kind}Type"


@cache
def _properties() -> Mapping[str, tuple[str, ...]]:
    """Predicates that every thing of a type has."""
    known = facts()
    sets = {
        "pickupable": known.pickupable | CAN_BE_TAKEN,
        "isReceptacleObject": known.receptacle_objects,
        **{name: known.affordances[name] for name in sorted(known.affordances)},
    }
    kinds = frozenset().union(*sets.values(), SCENERY)
    return {
        kind: tuple(name for name, members in sets.items() if kind in members) for kind in kinds
    }
