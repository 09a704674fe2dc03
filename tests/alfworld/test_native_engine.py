"""The native engine on a small room that holds every corner, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NOTHING_HAPPENS, NativeEngine
from paw_gym.envs.alfworld.native.problem import GameFileError, UnsupportedGameError

Started = Callable[..., NativeEngine]


@pytest.fixture
def started(tiny_game: Callable[..., dict[str, Any]]) -> Started:
    """``started(goal="place", grammar="put")``: an engine at the start of the small game."""
    return lambda *args, **kwargs: NativeEngine(CompiledGame.from_json(tiny_game(*args, **kwargs)))


def play(engine: NativeEngine, *commands: str) -> str:
    """Play commands that must all be accepted; the last answer."""
    answer = ""
    for command in commands:
        assert command in engine.admissible_commands()
        answer, _ = engine.step(command)
        assert answer != NOTHING_HAPPENS
    return answer


def test_the_opening_lists_all_receptacles(started: Started) -> None:
    engine = started()
    assert engine.reset() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a countertop 1, a drawer 2, a drawer 1, a fridge 1, a microwave 1, a "
        "shelf 1, and a sinkbasin 1.\n\nYour task is to: do as you like."
    )
    room = "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert play(engine, "look") == room


@pytest.mark.parametrize(
    ("grammar", "arrival", "put", "answer"),
    [
        ("put", "loc 5", "put bowl 1 in/on shelf 1", "You put the bowl 1 in/on the shelf 1."),
        ("move", "shelf 1", "move bowl 1 to shelf 1", "You move the bowl 1 to the shelf 1."),
    ],
)
def test_the_game_file_decides_the_grammar(
    started: Started, grammar: str, arrival: str, put: str, answer: str
) -> None:
    engine = started(grammar=grammar)
    assert engine.game.grammar.version == grammar
    seen = f"You arrive at {arrival}. On the shelf 1, you see a bowl 1."
    assert play(engine, "go to shelf 1") == seen
    play(engine, "take bowl 1 from shelf 1")
    assert play(engine, put) == answer
    assert ("help" in engine.admissible_commands()) == (grammar == "move")
    if grammar == "move":
        assert play(engine, "help").startswith("Available commands:\n")


def test_receptacles_that_share_a_location_are_no_targets_there(started: Started) -> None:
    engine = started()
    play(engine, "go to drawer 1")
    commands = engine.admissible_commands()
    assert commands == sorted(set(commands))
    assert {"open drawer 1", "open drawer 2", "examine shelf 1"} <= set(commands)
    targets = [command for command in commands if command.startswith("go to")]
    assert targets == [
        f"go to {p}" for p in ("countertop 1", "fridge 1", "microwave 1", "sinkbasin 1")
    ]
    facing = "You are facing the drawer 2, drawer 1, and shelf 1. Next to it, you see nothing."
    assert play(engine, "look") == facing
    commands.clear()
    assert engine.admissible_commands(), "the list belongs to the caller"


def test_next_to_it_is_what_was_taken_here(started: Started) -> None:
    engine = started()
    play(engine, "go to shelf 1", "open drawer 1", "open drawer 2", "take bowl 1 from shelf 1")
    play(engine, "put bowl 1 in/on drawer 2")
    assert play(engine, "look").endswith("Next to it, you see a bowl 1.")
    play(engine, "take bowl 1 from drawer 2", "put bowl 1 in/on shelf 1")
    assert play(engine, "look").endswith("Next to it, you see a bowl 1.")
    play(engine, "take bowl 1 from shelf 1", "put bowl 1 in/on drawer 1")
    twice = "Next to it, you see a bowl 1, and a bowl 1."  # taken from two receptacles here
    assert play(engine, "look").endswith(twice)


def test_closed_receptacles_hide_things_but_not_the_lamp(started: Started) -> None:
    engine = started()
    assert play(engine, "go to drawer 1").endswith("The drawer 1 is closed.")
    assert "use desklamp 1" in engine.admissible_commands()
    assert play(engine, "use desklamp 1") == "You turn on the desklamp 1."
    assert play(engine, "use desklamp 1") == "You turn on the desklamp 1."
    inside = "The drawer 2 is open. In it, you see a key 1, and a knife 1."
    assert play(engine, "open drawer 2") == f"You open the drawer 2. {inside}"
    assert play(engine, "close drawer 2") == "You close the drawer 2."
    assert "take knife 1 from drawer 2" not in engine.admissible_commands()
    # the key lies in two receptacles, and can be taken from either
    play(engine, "go to countertop 1", "take key 1 from countertop 1", "go to drawer 2")
    assert play(engine, "open drawer 2").endswith("you see a key 1, and a knife 1.")


def test_hands_hold_one_thing_that_can_be_examined(started: Started) -> None:
    engine = started()
    assert play(engine, "inventory") == "You are not carrying anything."
    play(engine, "go to countertop 1")
    assert "examine apple 2" not in engine.admissible_commands()
    play(engine, "take apple 2 from countertop 1")
    assert play(engine, "inventory") == "You are carrying: a apple 2."
    assert play(engine, "examine apple 2") == "There's nothing special about apple 2."
    assert not [c for c in engine.admissible_commands() if c.startswith("take")]
    empty = "On the countertop 1, you see a key 1."
    assert play(engine, "examine countertop 1") == empty
    assert play(engine, "go to sinkbasin 1").endswith("On the sinkbasin 1, you see nothing.")
    engine.reset()
    play(engine, "go to shelf 1", "take bowl 1 from shelf 1")
    assert play(engine, "examine bowl 1") == "This is a normal bowl 1. In it, you see nothing."


def test_heat_and_cool_cancel_and_cleaning_adds(started: Started) -> None:
    engine = started()
    play(engine, "go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1")
    assert play(engine, "cool apple 2 with fridge 1") == (
        "You cool the apple 2 using the fridge 1."  # the door stays closed
    )
    assert play(engine, "examine apple 2") == "This is a cold apple 2."
    play(engine, "go to microwave 1", "heat apple 2 with microwave 1")
    assert play(engine, "examine apple 2") == "This is a hot apple 2."
    play(engine, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1")
    assert play(engine, "examine apple 2") == "This is a hot and clean apple 2."


def test_slicing_asks_for_the_location_that_the_facts_give(started: Started) -> None:
    engine = started()
    play(engine, "go to drawer 2", "open drawer 2", "take knife 1 from drawer 2", "go to fridge 1")
    assert "slice apple 1 with knife 1" in engine.admissible_commands()  # the fridge is closed
    assert "slice bread 1 with knife 1" not in engine.admissible_commands()
    play(engine, "go to countertop 1")
    assert play(engine, "slice bread 1 with knife 1") == "You sliced the bread 1 with the knife 1."


def test_receptacles_refuse_types_they_cannot_contain(started: Started) -> None:
    engine = started()
    play(engine, "go to fridge 1", "open fridge 1", "take bread 1 from fridge 1")
    assert engine.step("  go to sinkbasin 1\n")[0] != NOTHING_HAPPENS  # white space is no matter
    assert "put bread 1 in/on sinkbasin 1" not in engine.admissible_commands()


@pytest.mark.parametrize(
    "command",
    ["", "  ", "LOOK", "Look", "go to", "go to shelf 9", "take apple 2", "x" * 100_000, "é\n\0"],
)
def test_what_is_not_admissible_changes_nothing(started: Started, command: str) -> None:
    engine = started()
    before = engine.save_state()
    assert engine.step(command) == ("Nothing happens.", False)
    assert engine.save_state() == before


WINNING = {
    "place": [
        *("go to countertop 1", "take apple 2 from countertop 1", "go to drawer 1"),
        *("open drawer 1", "put apple 2 in/on drawer 1"),
    ],
    "two": [
        *("go to countertop 1", "take apple 2 from countertop 1", "go to drawer 1"),
        *("open drawer 1", "put apple 2 in/on drawer 1", "go to fridge 1", "open fridge 1"),
        *("take apple 1 from fridge 1", "go to drawer 1", "put apple 1 in/on drawer 1"),
    ],
    "hot": [
        *("go to countertop 1", "take apple 2 from countertop 1", "go to microwave 1"),
        *("heat apple 2 with microwave 1", "go to drawer 1", "open drawer 1"),
        "put apple 2 in/on drawer 1",
    ],
    "light": [
        *("go to countertop 1", "take key 1 from countertop 1", "go to drawer 1"),
        "use desklamp 1",
    ],
}


@pytest.mark.parametrize("goal", WINNING)
def test_a_goal_is_won_by_its_last_command(started: Started, goal: str) -> None:
    engine = started(goal)
    *first, last = WINNING[goal]
    for command in first:
        play(engine, command)
        assert not engine.won
    assert engine.step(last)[1] and engine.won
    engine.reset()
    assert not engine.won


def test_two_drawers_with_one_apple_each_are_not_two_in_one(started: Started) -> None:
    engine = started("two")
    play(engine, *WINNING["two"][:-1])
    play(engine, "open drawer 2", "put apple 1 in/on drawer 2")
    assert not engine.won


def test_a_cooled_apple_is_no_hot_one_any_more(started: Started) -> None:
    engine = started("hot")
    play(engine, *WINNING["hot"][:4], "go to fridge 1", "cool apple 2 with fridge 1")
    play(engine, *WINNING["hot"][4:])
    assert not engine.won


def test_a_state_of_another_game_or_engine_is_refused(started: Started) -> None:
    engine = started()
    with pytest.raises(ValueError, match="another game"):
        engine.restore_state(started("two").save_state())
    with pytest.raises(TypeError, match="NativeState"):
        engine.restore_state(("look",))


TinyGame = Callable[..., dict[str, Any]]


def changed(data: dict[str, Any], key: str, old: str, new: str) -> dict[str, Any]:
    assert old in data[key]
    return {**data, key: data[key].replace(old, new)}


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("pddl_domain", "(not (holdsAny ?a))  ;", "; "),
        ("grammar", "You pick up the", "You grab the"),
        ("grammar", "{r.indefinite} {r.name", "{r.definite} {r.name"),
        ("grammar", "do as you like", "do [anything]"),
        ("pddl_problem", "(not (= ?o1 ?o2))", "(= ?o1 ?o2)"),
        ("pddl_problem", "(objectType ?o2 AppleType)", "(objectType ?o2 KeyType)"),
        ("pddl_problem", "(:init", "(:init (holds agent1 Key_bar_1)"),
        ("pddl_problem", "(:init", "(:init (atLocation agent1 loc_bar_5)"),
        ("pddl_problem", "(:init", "(:init (receptacleAtLocation Shelf_bar_1 loc_bar_0)"),
    ],
)
def test_what_it_does_not_know_is_refused_without_advice_to_run_it(
    tiny_game: TinyGame, key: str, old: str, new: str
) -> None:
    with pytest.raises(UnsupportedGameError, match="refuses to guess") as refused:
        CompiledGame.from_json(changed(tiny_game("two"), key, old, new))
    assert "textworld" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "old", "new", "message"),
    [
        ("pddl_problem", "(:goal", "(:gaol", "no :goal section"),
        ("pddl_problem", "(:init", "((:init", "still open"),
        ("pddl_problem", "(:init", "(:init)) (", "nothing opened"),
        ("pddl_problem", "(:init", "(:init (pickupable Ghost_bar_1)", "undeclared 'ghost_bar_1'"),
        ("pddl_problem", "(:init", "(:init (opened)", "'opened' takes 1 argument"),
        ("pddl_problem", "(:init", "(:init (opened (shelf))", "nested fact"),
        ("pddl_problem", "(:init", "(:init (pickupable Shelf_bar_1)", "shelf_bar_1"),
        ("grammar", "Your task is to:", "Your job is to:", "Your task is to"),
    ],
)
def test_corrupt_games_say_what_is_wrong(
    tiny_game: TinyGame, key: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(GameFileError, match=re.escape(message)):
        CompiledGame.from_json(changed(tiny_game(), key, old, new))
