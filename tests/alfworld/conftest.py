"""A hand-written game that holds every corner of the engines in one small room."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paw_gym.envs.alfworld.procedural.rooms import engine_texts

RECEPTACLES = {
    # name: (id, location, openable); the two drawers and the shelf share a location.
    "drawer 2": ("Drawer_bar_1", "loc_bar_1", True),
    "drawer 1": ("Drawer_bar_2", "loc_bar_1", True),
    "shelf 1": ("Shelf_bar_1", "loc_bar_1", False),
    "sinkbasin 1": ("Sink_bar_1_bar_SinkBasin", "loc_bar_2", False),
    "microwave 1": ("Microwave_bar_1", "loc_bar_3", True),
    "fridge 1": ("Fridge_bar_1", "loc_bar_4", True),
    "countertop 1": ("CounterTop_bar_1", "loc_bar_5", False),
}
OBJECTS = {
    # name: (id, receptacles it is in, locations it is said to be at)
    "apple 2": ("Apple_bar_1", ("CounterTop_bar_1",), ("loc_bar_5",)),
    "apple 1": ("Apple_bar_2", ("Fridge_bar_1",), ("loc_bar_4",)),
    "knife 1": ("Knife_bar_1", ("Drawer_bar_1",), ("loc_bar_1",)),
    "bowl 1": ("Bowl_bar_1", ("Shelf_bar_1",), ("loc_bar_1",)),
    "key 1": ("Key_bar_1", ("Drawer_bar_1", "CounterTop_bar_1"), ("loc_bar_1",)),
    "desklamp 1": ("DeskLamp_bar_1", ("Drawer_bar_2",), ("loc_bar_1",)),
    "statue 1": ("Statue_bar_1", (), ("loc_bar_2",)),
    # The facts put the bread into the fridge, but at the countertop's location.
    "bread 1": ("Bread_bar_1", ("Fridge_bar_1",), ("loc_bar_5",)),
}
GOALS = {
    "place": """(exists (?r - receptacle) (exists (?o - object) (and
        (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r DrawerType))))""",
    "two": """(exists (?r - receptacle) (exists (?o1 - object) (and
        (objectType ?o1 AppleType) (receptacleType ?r DrawerType) (inReceptacle ?o1 ?r)
        (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 AppleType)
            (receptacleType ?r DrawerType) (inReceptacle ?o2 ?r))))))""",
    "hot": """(exists (?r - receptacle) (exists (?o - object) (and (heatable ?o)
        (objectType ?o AppleType) (receptacleType ?r DrawerType) (isHot ?o)
        (inReceptacle ?o ?r))))""",
    "light": """(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
        (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot)
        (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
        (exists (?o - object ?a - agent) (and (objectType ?o KeyType) (holds ?a ?o)))""",
}


@pytest.fixture(scope="session")
def tiny_game() -> Callable[..., dict[str, Any]]:
    """``tiny_game(goal="place", grammar="put")``: the game's JSON."""
    return _game


def _game(goal: str = "place", grammar: str = "put") -> dict[str, Any]:
    texts = engine_texts()
    return {
        "pddl_domain": texts[f"domain_{grammar}"],
        "grammar": texts[f"grammar_{grammar}"].replace("UNKNOWN GOAL", "do as you like"),
        "pddl_problem": _problem(GOALS[goal]),
        "solvable": True,
    }


def _problem(goal: str) -> str:
    places = [f"loc_bar_{i}" for i in range(6)]
    facts = ["(atLocation agent1 loc_bar_0)"]
    declared = [f"{place} - location" for place in places] + ["agent1 - agent"]
    for receptacle, place, openable in RECEPTACLES.values():
        kind = "SinkBasin" if "Sink" in receptacle else receptacle.split("_")[0]
        declared.append(f"{receptacle} - receptacle")
        facts.append(f"(receptacleAtLocation {receptacle} {place})")
        facts.append(f"(receptacleType {receptacle} {kind}Type)")
        facts += [f"(openable {receptacle})"] * openable
        # Anything goes anywhere, but no bread into the sink.
        facts += [
            f"(canContain {kind}Type {thing}Type)"
            for thing in ("Apple", "Knife", "Bowl", "Key", "Bread")
            if (kind, thing) != ("SinkBasin", "Bread")
        ]
    for thing, inside, spots in OBJECTS.values():
        kind = thing.split("_")[0]
        declared.append(f"{thing} - object")
        facts.append(f"(objectType {thing} {kind}Type)")
        facts += [f"(inReceptacle {thing} {receptacle})" for receptacle in inside]
        facts += [f"(objectAtLocation {thing} {spot})" for spot in spots]
        if kind not in ("DeskLamp", "Statue"):
            facts.append(f"(pickupable {thing})")
        if kind in ("Apple", "Bread"):
            facts += [f"({able} {thing})" for able in ("heatable", "coolable", "sliceable")]
        if kind in ("Apple", "Knife", "Bowl"):
            facts.append(f"(cleanable {thing})")
    facts += ["(toggleable DeskLamp_bar_1)", "(isReceptacleObject Bowl_bar_1)"]
    kinds = sorted({k for k in (f.split()[-1].rstrip(")") for f in facts) if k.endswith("Type")})
    kinds += ["DrawerType", "ShelfType"]
    receptacle_kinds = {"Drawer", "Shelf", "SinkBasin", "Microwave", "Fridge", "CounterTop"}
    for kind in dict.fromkeys(kinds):
        type_of = "rtype" if kind.removesuffix("Type") in receptacle_kinds else "otype"
        declared.append(f"{kind} - {type_of}")
    return (
        f"(define (problem tiny) (:domain alfred) (:objects {' '.join(declared)})"
        f" (:init {' '.join(dict.fromkeys(facts))}) (:goal (and {goal})))"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "original_engine" in getattr(item, "fixturenames", ()):
            item.add_marker("original")


@pytest.fixture(scope="session")
def original_engine() -> Iterator[None]:
    """The packages of the original engine, or a skip.

    It spends most of its time on parsing the same short texts: here each is parsed once, and copied.
    """
    for package in ("textworld", "fast_downward", "alfworld"):
        pytest.importorskip(package, reason="make test-original")
    from textworld import logic
    from textworld.envs.pddl import textgen

    with pytest.MonkeyPatch.context() as patch:
        for module in (logic, textgen):
            patch.setattr(module, "_parse_and_convert", _once(module._parse_and_convert))
        yield


def _once(parse: Callable[..., Any]) -> Callable[..., Any]:
    known = functools.cache(parse)
    return lambda text, **options: copy.deepcopy(known(text, **options))
