"""Reading game files: names, recognition of rules and goals, and errors that say what is wrong."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from paw_gym.envs.alfworld.errors import GameFileError, UnsupportedGameError
from paw_gym.envs.alfworld.native.compiled import CompiledGame, display_names

TinyGame = Callable[..., dict[str, Any]]


def changed(data: dict[str, Any], key: str, old: str, new: str) -> dict[str, Any]:
    assert old in data[key]
    return {**data, key: data[key].replace(old, new)}


def test_names_are_numbered_downward_in_the_order_of_ids() -> None:
    names = display_names(
        ["cup_bar_b", "cup_bar_a", "cup_bar_c", "sink_bar_1_bar_sinkbasin", "sink_bar_1", "agent1"]
    )
    assert names == {
        "agent1": "agent1 ",
        "cup_bar_a": "cup 3",
        "cup_bar_b": "cup 2",
        "cup_bar_c": "cup 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_comments_case_and_spacing_of_the_domain_do_not_matter(tiny_game: TinyGame) -> None:
    data = tiny_game()
    domain = "; a comment\n" + data["pddl_domain"].upper().replace("\n", "\n  ")
    game = CompiledGame.from_json({**data, "pddl_domain": domain})
    assert not game.domain.has_help


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
def test_what_the_native_engine_does_not_know_is_refused_without_advice_to_run_it(
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


@pytest.mark.parametrize("key", ["pddl_domain", "grammar", "pddl_problem"])
def test_a_missing_key_is_named(tiny_game: TinyGame, key: str) -> None:
    data = tiny_game()
    del data[key]
    with pytest.raises(GameFileError, match=key):
        CompiledGame.from_json(data)
