"""Procedural ALFWorld games: fresh, solvable, reproducible by seed, playable in both engines.

A game is sampled top down (room, goal, receptacles, things), then kept only if the hash of what lies where
is in the split's share; so no placement of one split can ever occur in another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from paw_gym.envs.alfworld.native.problem import TASK_TYPES, make_goal
from paw_gym.envs.alfworld.procedural.placement import (
    CAN_BE_TAKEN,
    SCENERY,
    as_receptacles,
    lay_things,
    modified_receptacles,
    types_of_kind,
)
from paw_gym.envs.alfworld.procedural.plan import plan, world_of_scene
from paw_gym.envs.alfworld.procedural.rooms import engine_texts, facts, random_place
from paw_gym.envs.alfworld.procedural.scene import (
    Scene,
    cell_id,
    goal_pddl,
    sample_goal,
    sample_room,
)
from paw_gym.internals.naming import require_choice

SPLITS = ("train", "valid_seen", "valid_unseen")
QUARTERS = ("train", "train", "valid_seen", "valid_unseen")
"""the splits that the quarters of the placement hashes belong to"""

AGENT = "agent1"
Fact = tuple[str, ...]
Variation = Literal["real", "modified", "mixed"]
VARIATIONS: tuple[Variation, ...] = ("real", "modified", "mixed")
MODIFIED_SHARE = 0.8
"""share of modified rooms in "mixed": most, since a small policy generalises from these"""
THINGS_PER_RECEPTACLE = (0.9, 1.8)
"""range from which a modified room's number of things is sampled; official rooms average 1.1 to 1.6"""


def share_of(placement_hash: str) -> str:
    """The split that owns a placement."""
    return QUARTERS[int(placement_hash[:8], 16) % 4]


def generate_game(
    split: str,
    task_type: str,
    seed: int,
    grammar: Literal["put", "move"] = "put",
    variation: Variation | None = None,
) -> dict[str, Any]:
    """One game as the JSON content of a `game.tw-pddl`.

    Args:
        split: one of `SPLITS`. `valid_unseen` uses rooms of which no other split has games; `train`
            and `valid_seen` share rooms; what lies where is never the same in two splits.
        grammar: "put" (that of the official games) or "move" (that of `alfworld` 0.4); it has no
            influence on what is sampled.
        variation: "real", "modified", or "mixed" (four in five games are modified). Default: "mixed" for
            train, "real" for the others.

    Returns:
        `pddl_domain, grammar, pddl_problem, solvable, walkthrough` as in official game files, and
        `task_type, task` (its wording)`, room, placement_hash, split, seed, variation`.
    """
    require_choice("split", split, SPLITS)
    require_choice("task type", task_type, TASK_TYPES)
    require_choice("grammar", grammar, ("put", "move"))
    variation = variation_of(split, variation)
    rng = random.Random(f"{split}|{task_type}|{seed}|{variation}")
    while True:
        modified = variation == "modified" or (
            variation == "mixed" and rng.random() < MODIFIED_SHARE
        )
        scene = _sample(split, task_type, modified, rng)
        digest = scene.placement_hash()
        if share_of(digest) == split:
            break
    texts, wanted = engine_texts(), scene.goal
    goal = make_goal(task_type, wanted.object_type.lower(), wanted.target_type.lower())
    return {
        "pddl_domain": texts[f"domain_{grammar}"],
        "grammar": texts[f"grammar_{grammar}"].replace("UNKNOWN GOAL.", wanted.sentence),
        "pddl_problem": problem_text(scene, f"paw_{scene.room}_{digest[:12]}"),
        "solvable": True,
        "walkthrough": plan(world_of_scene(scene, grammar), goal),
        "task_type": task_type,
        "task": wanted.sentence,
        "room": scene.room,
        "placement_hash": digest,
        "split": split,
        "seed": seed,
        "variation": variation,
    }


def _sample(split: str, task_type: str, modified: bool, rng: random.Random) -> Scene:
    room = sample_room(task_type, split == "valid_unseen", not modified, rng)
    kinds = types_of_kind(room.kind) if modified else room.object_types
    goal = sample_goal(task_type, room.receptacle_types, kinds, rng)
    most = None
    if modified:
        receptacles = modified_receptacles(room, goal, rng)
        most = round(len(receptacles) * rng.uniform(*THINGS_PER_RECEPTACLE))
    else:
        receptacles = as_receptacles(room.fittings)
    # chairs, windows and light switches lie in no receptacle
    shown = kinds & (facts().pickupable | SCENERY.keys())
    things = lay_things(receptacles, shown, goal, most, rng)
    taken = {receptacle.cell for receptacle in receptacles}
    while (start := random_place(rng)[1]) in taken:
        pass  # official games start away from every receptacle
    return Scene(room.number, receptacles, things, start, goal)


def variation_of(split: str, variation: Variation | None) -> Variation:
    """The kind of a game's room: as given, or the default of a split."""
    if variation is None:
        return "mixed" if split == "train" else "real"
    require_choice("variation", variation, VARIATIONS)
    return variation


# --- PDDL --------------------------------------------------------------------------------------------


def problem_text(scene: Scene, name: str) -> str:
    """The whole ``(define (problem ...))`` in ALFWorld's spelling."""
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
