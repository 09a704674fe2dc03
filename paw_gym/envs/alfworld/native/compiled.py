"""A game file turned into what the native engine steps on: indices, bit masks and names.

Bit masks number objects, receptacles and locations in the order of their ids, which is also the
order in which the original lists them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paw_gym.envs.alfworld.native import rules
from paw_gym.envs.alfworld.native.problem import (
    GameFileError,
    Goal,
    Problem,
    UnsupportedGameError,
    display_type,
    parse_goal,
    parse_problem,
)

GAME_KEYS = ("pddl_domain", "grammar", "pddl_problem")

_OF_ONE = """
checked cleanable coolable examined full heatable isclean iscool ishot ison isreceptacleobject
isreceptacleobjectfull issliced istoggled moveable openable opened pickupable sliceable toggleable
"""
_OF_TWO = """
atlocation cancontain inreceptacle inreceptacleobject objectatlocation objecttype receptacleatlocation
receptacletype wasinreceptacle
"""
_PREDICATES = {**dict.fromkeys(_OF_ONE.split(), 1), **dict.fromkeys(_OF_TWO.split(), 2)}
"""predicates that may appear in the initial state, with their number of arguments; ``holds`` and
its kin are left out on purpose: no known game starts with full hands"""


_AFFORDANCES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
_STATES = ("clean", "hot", "cool", "sliced", "toggled")


@dataclass(frozen=True, eq=False)
class CompiledGame:
    """One game, immutable, shared by all episodes and engines that play it.

    Objects, receptacles and locations are indices into the tuples of names below. A *mask* is an
    int whose bit ``i`` stands for object (or receptacle) ``i``; `bits` lists the set bits.
    """

    task: str
    """the text after "Your task is to: " """
    goal: Goal
    grammar: rules.Grammar
    help: str | None
    """the answer to ``help``; None if domain and grammar have no such command"""
    digest: str
    """sha256 of domain, grammar and problem, which is all that defines the game"""

    receptacles: tuple[str, ...]
    objects: tuple[str, ...]
    locations: tuple[str, ...]
    """display names, such as "cabinet 3" and "loc 12" """
    receptacle_types: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacle_location: tuple[int | None, ...]
    """the location at which a receptacle is used; None: nowhere"""
    receptacles_at: tuple[tuple[int, ...], ...]
    start: int

    contents: tuple[int, ...]
    """mask of objects by receptacle; real games may have an object in two"""
    objects_at: tuple[int, ...]
    """mask of objects by location, as the initial facts claim; it may disagree with `contents`"""
    accepts: tuple[int, ...]
    openable: int
    opened: int
    pickupable: int
    cleanable: int
    heatable: int
    coolable: int
    toggleable: int
    sliceable: int
    knives: int
    cleaners: int
    heaters: int
    coolers: int
    hollow: int
    """mask of objects that can hold others, such as bowls"""
    inside: tuple[int, ...]
    """mask of the objects inside object ``o``; no action changes it"""
    clean: int
    hot: int
    cool: int
    sliced: int
    toggled: int
    """the five masks of object states at the start"""

    goal_objects: int
    """mask of the objects the goal is about (if it asks for clean ones: those to be cleaned)"""
    goal_receptacles: tuple[int, ...]
    goal_lamps: int

    memo: dict[str, Any] = field(default_factory=dict, repr=False)
    menus: dict[Any, Any] = field(default_factory=dict, repr=False)
    views: dict[Any, str] = field(default_factory=dict, repr=False)
    """results that engines have already worked out for this game, bounded"""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompiledGame:
        """Compile the JSON content of a ``game.tw-pddl``."""
        domain = rules.recognise_domain(data["pddl_domain"])
        grammar, task = rules.recognise_grammar(data["grammar"])
        problem = parse_problem(data["pddl_problem"])
        _check_facts(problem)
        goal = parse_goal(problem.goal)
        try:
            tables = _tables(problem, domain)
        except KeyError as error:
            raise GameFileError(f"an initial fact uses {error} as what it is not") from error
        return cls(
            task=task,
            goal=goal,
            grammar=grammar,
            help=rules.help_text(data["grammar"]) if domain.has_help else None,
            digest=game_digest(data),
            **tables,
            **_goal_tables(goal, tables),
        )


def game_digest(data: Mapping[str, Any]) -> str:
    """sha256 (hex) of the three texts that define a game."""
    digest = hashlib.sha256()
    for key in GAME_KEYS:
        part = data[key].encode()
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def bits(mask: int) -> tuple[int, ...]:
    """The positions of the bits set in `mask`, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Names every entity as the original's demangler does: "bed_bar__plus_01..." becomes "bed 1".

    Ids are sorted and numbered downward within a name, so the first id gets the highest number.
    "basin" anywhere in an id is appended to its name ("sink..." becomes "sinkbasin 1"). An id
    without "_bar_" has no number, and the original then leaves a space at the end.
    """
    ordered = sorted(ids)
    numbered = {
        entity: entity.split("_bar_", 1)[0] + ("basin" if "basin" in entity else "")
        for entity in ordered
        if "_bar_" in entity
    }
    left = Counter(numbered.values())
    names = {}
    for entity in ordered:
        base = numbered.get(entity)
        if base is None:
            names[entity] = f"{entity} "
        else:
            names[entity] = f"{base} {left[base]}"
            left[base] -= 1
    return names


def _check_facts(problem: Problem) -> None:
    for predicate, facts in problem.facts.items():
        if predicate not in _PREDICATES:
            raise UnsupportedGameError(f"The initial state has the unknown fact {predicate!r}.")
        arity = _PREDICATES[predicate]
        for arguments in facts:
            if len(arguments) != arity:
                raise GameFileError(f"fact {predicate!r} takes {arity} arguments, got {arguments}")
            if undeclared := [name for name in arguments if name not in problem.objects]:
                raise GameFileError(f"fact {predicate!r} names the undeclared {undeclared[0]!r}")


def _tables(problem: Problem, domain: rules.Domain) -> dict[str, Any]:
    facts = problem.facts
    # The original knows what the initial facts mention, not what is declared: that decides the numbers in
    # display names. Sorted by id, as it does, so that masks list things in the original's order.
    mentioned = {arg for group in facts.values() for fact in group for arg in fact}
    names = display_names(mentioned)
    ids = {
        kind: sorted(e for e in mentioned if problem.objects[e] == kind)
        for kind in ("object", "receptacle", "location")
    }
    objects, receptacles, locations = (
        {entity: i for i, entity in enumerate(ids[kind])} for kind in ids
    )
    object_types = _single(facts.get("objecttype", []), "objectType")
    receptacle_types = _single(facts.get("receptacletype", []), "receptacleType")
    location_of = _single(facts.get("receptacleatlocation", []), "receptacleAtLocation")

    def object_mask(predicate: str) -> int:
        return _mask(objects[name] for (name,) in facts.get(predicate, ()))

    def receptacle_mask(predicate: str) -> int:
        return _mask(receptacles[r] for (r,) in facts.get(predicate, ()) if r in receptacles)

    def of_types(types: Collection[str]) -> int:
        return _mask(i for e, i in receptacles.items() if receptacle_types.get(e) in types)

    may = set(facts.get("cancontain", ()))
    starts = facts.get("atlocation", [])
    if len(starts) != 1:
        raise UnsupportedGameError(f"The game has {len(starts)} agent positions instead of one.")
    where = [location_of.get(entity) for entity in receptacles]
    receptacle_location = tuple(None if place is None else locations[place] for place in where)
    return {
        "receptacles": tuple(names[entity] for entity in receptacles),
        "objects": tuple(names[entity] for entity in objects),
        "locations": tuple(names[entity] for entity in locations),
        "receptacle_types": tuple(display_type(receptacle_types.get(e, "")) for e in receptacles),
        "object_types": tuple(display_type(object_types.get(e, "")) for e in objects),
        "receptacle_location": receptacle_location,
        "receptacles_at": tuple(
            tuple(r for r, place in enumerate(receptacle_location) if place == index)
            for index in range(len(locations))
        ),
        "start": locations[starts[0][1]],
        "contents": _relation(facts.get("inreceptacle", []), objects, receptacles),
        "objects_at": _relation(facts.get("objectatlocation", []), objects, locations),
        "inside": _relation(facts.get("inreceptacleobject", []), objects, objects),
        "accepts": tuple(
            _mask(i for e, i in objects.items() if (kind, object_types.get(e)) in may)
            for kind in map(receptacle_types.get, receptacles)
        ),
        "openable": receptacle_mask("openable"),
        "opened": receptacle_mask("opened"),
        "hollow": object_mask("isreceptacleobject"),
        **{name: object_mask(name) for name in _AFFORDANCES},
        **{name: object_mask(f"is{name}") for name in _STATES},
        "knives": _mask(
            i for e, i in objects.items() if object_types.get(e) in ("knifetype", "butterknifetype")
        ),
        "cleaners": of_types(domain.cleaning_types),
        "heaters": of_types({"microwavetype"}),
        "coolers": of_types({"fridgetype"}),
    }


def _goal_tables(goal: Goal, tables: Mapping[str, Any]) -> dict[str, Any]:
    def objects_of(kind: str | None) -> int:
        return _mask(o for o, name in enumerate(tables["object_types"]) if name == kind)

    # The goals of the clean, heat and cool tasks also ask for the affordance, so objects without it
    # never count; -1 has all bits set.
    able = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}
    changeable = tables[able[goal.state]] if goal.state else -1
    return {
        "goal_objects": objects_of(goal.object_type) & changeable,
        "goal_receptacles": tuple(
            r for r, kind in enumerate(tables["receptacle_types"]) if kind == goal.receptacle_type
        ),
        "goal_lamps": objects_of(goal.lamp_type) & tables["toggleable"],
    }


def _single(pairs: Iterable[tuple[str, ...]], predicate: str) -> dict[str, str]:
    single: dict[str, str] = {}
    for entity, value in pairs:
        if single.setdefault(entity, value) != value:
            raise UnsupportedGameError(f"{entity} has two values of {predicate}.")
    return single


def _mask(indices: Iterable[int]) -> int:
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


def _relation(
    pairs: Iterable[tuple[str, ...]], left: Mapping[str, int], right: Mapping[str, int]
) -> tuple[int, ...]:
    """For every entity on the right, the mask of entities on the left paired with it."""
    masks = [0] * len(right)
    for a, b in pairs:
        masks[right[b]] |= 1 << left[a]
    return tuple(masks)
