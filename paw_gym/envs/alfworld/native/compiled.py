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

from paw_gym.envs.alfworld.errors import GameFileError, UnsupportedGameError
from paw_gym.envs.alfworld.native.goal import Goal, display_type, parse_goal
from paw_gym.envs.alfworld.native.pddl import Problem, parse_problem
from paw_gym.envs.alfworld.native.rules import (
    Domain,
    Grammar,
    help_text,
    recognise_domain,
    recognise_grammar,
)

GAME_KEYS = ("pddl_domain", "grammar", "pddl_problem")

_PREDICATES = {
    "atlocation": 2,
    "cancontain": 2,
    "checked": 1,
    "cleanable": 1,
    "coolable": 1,
    "examined": 1,
    "full": 1,
    "heatable": 1,
    "inreceptacle": 2,
    "inreceptacleobject": 2,
    "isclean": 1,
    "iscool": 1,
    "ishot": 1,
    "ison": 1,
    "isreceptacleobject": 1,
    "isreceptacleobjectfull": 1,
    "issliced": 1,
    "istoggled": 1,
    "moveable": 1,
    "objectatlocation": 2,
    "objecttype": 2,
    "openable": 1,
    "opened": 1,
    "pickupable": 1,
    "receptacleatlocation": 2,
    "receptacletype": 2,
    "sliceable": 1,
    "toggleable": 1,
    "wasinreceptacle": 2,
}
"""predicates that may appear in the initial state, with their number of arguments; ``holds`` and
its kin are left out on purpose: no known game starts with full hands"""


_AFFORDANCES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
_STATES = ("clean", "hot", "cool", "sliced", "toggled")


@dataclass(frozen=True, eq=False)
class CompiledGame:
    """One game, immutable, shared by all episodes and engines that play it.

    Objects, receptacles and locations are indices into the tuples of names below. A *mask* is an
    int whose bit ``i`` stands for object (or receptacle) ``i``; `bits` lists the set bits.

    What a generator or an expert needs:

    * ``receptacles[r]``, ``objects[o]``, ``locations[l]``: display names ("cabinet 3", "loc 12");
      ``receptacle_types[r]``, ``object_types[o]``: "cabinet", "soapbar";
    * ``receptacle_location[r]``: the location at which receptacle ``r`` is used (None: nowhere),
      and ``receptacles_at[l]``: the receptacles used from location ``l``;
    * ``contents[r]``: mask of the objects in ``r`` at the start (real games may have an object
      in two receptacles);
    * ``openable``, ``opened``: masks of receptacles; ``accepts[r]``: mask of objects it may hold;
    * ``pickupable``, ``cleanable``, ``heatable``, ``coolable``, ``toggleable``, ``sliceable``,
      ``knives``: masks of objects; ``cleaners``, ``heaters``, ``coolers``: masks of receptacles;
    * ``goal``: a `Goal`; ``task``: the text after "Your task is to: "; ``start``: a location.
    """

    task: str
    goal: Goal
    grammar_version: str
    """"put" (older game files) or "move" (alfworld 0.4)"""
    digest: str
    """sha256 of domain, grammar and problem, which is all that defines the game"""

    receptacles: tuple[str, ...]
    objects: tuple[str, ...]
    locations: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacle_location: tuple[int | None, ...]
    receptacles_at: tuple[tuple[int, ...], ...]
    start: int

    contents: tuple[int, ...]
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

    domain: Domain
    grammar: Grammar
    help: str | None
    """the answer to ``help``; None if domain and grammar have no such command"""
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
        for key in GAME_KEYS:
            if not isinstance(data.get(key), str):
                raise GameFileError(f"the game has no text under the key {key!r}")
        domain = recognise_domain(data["pddl_domain"])
        grammar, task = recognise_grammar(data["grammar"])
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
            grammar_version=grammar.version,
            digest=game_digest(data),
            domain=domain,
            grammar=grammar,
            help=help_text(data["grammar"]) if domain.has_help else None,
            **tables,
            **_goal_tables(goal, tables),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memo": {}, "menus": {}, "views": {}}


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
        arity = _PREDICATES.get(predicate)
        if arity is None:
            raise UnsupportedGameError(f"The initial state has the unknown fact {predicate!r}.")
        for arguments in facts:
            if len(arguments) != arity:
                raise GameFileError(f"fact {predicate!r} takes {arity} arguments, got {arguments}")
            for argument in arguments:
                if argument not in problem.objects:
                    raise GameFileError(f"fact {predicate!r} names the undeclared {argument!r}")


def _tables(problem: Problem, domain: Domain) -> dict[str, Any]:
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
        return _mask(objects[args[0]] for args in facts.get(predicate, ()))

    def receptacle_mask(predicate: str) -> int:
        return _mask(
            receptacles[args[0]] for args in facts.get(predicate, ()) if args[0] in receptacles
        )

    def of_types(types: Collection[str]) -> int:
        return _mask(i for e, i in receptacles.items() if receptacle_types.get(e) in types)

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
        "accepts": _accepts(facts, objects, receptacles, object_types, receptacle_types),
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
            r
            for r, kind in enumerate(tables["receptacle_types"])
            if kind == goal.receptacle_type and goal.receptacle_type is not None
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


def _accepts(
    facts: Mapping[str, list[tuple[str, ...]]],
    objects: Mapping[str, int],
    receptacles: Mapping[str, int],
    object_types: Mapping[str, str],
    receptacle_types: Mapping[str, str],
) -> tuple[int, ...]:
    allowed = set(facts.get("cancontain", ()))
    return tuple(
        _mask(
            index
            for entity, index in objects.items()
            if (receptacle_types.get(receptacle), object_types.get(entity)) in allowed
        )
        for receptacle in receptacles
    )
