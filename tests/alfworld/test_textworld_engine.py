"""The original engine behind our interface, and ours against it."""

import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paw_gym.envs.alfworld.errors import GameFileError, UnsolvableGameError
from paw_gym.envs.alfworld.games import parse_game
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.parity import (
    ParityError,
    compare,
    random_walker,
    script_walker,
    winning_commands,
    with_newer_grammar,
)
from paw_gym.envs.alfworld.procedural.rooms import engine_texts
from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine

TinyGame = Callable[..., dict[str, Any]]

GAMES = 2


def real_games(archive: Path, count: int, seed: int) -> list[bytes]:
    """Some solvable games of an archive, unpacked in memory."""
    with tarfile.open(archive) as tar:
        games = [member for member in tar.getmembers() if member.name.endswith("game.tw-pddl")]
        games.sort(key=lambda member: member.name)
        random.Random(seed).shuffle(games)
        # One in eight of these is marked unsolvable.
        picked = sorted(games[: 2 * count], key=lambda member: member.offset)
        texts = [file.read() for member in picked if (file := tar.extractfile(member))]
    return [text for text in texts if parse_game(text, "game").get("solvable")][:count]


def test_without_the_extra_the_error_names_it(
    tiny_game: TinyGame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[alfworld\]"'):
        TextWorldEngine(tiny_game())


@pytest.mark.parametrize(
    ("goal", "grammar"), [("place", "put"), ("place", "move"), ("two", "move"), ("light", "put")]
)
@pytest.mark.usefixtures("original_engine")
def test_both_engines_agree_in_the_room_with_all_corners(
    tiny_game: TinyGame, goal: str, grammar: str
) -> None:
    data = tiny_game(goal, grammar)
    game = CompiledGame.from_json(data)
    native, original = NativeEngine(game), TextWorldEngine(data)
    compare(native, original, random_walker(25, seed=len(goal + grammar)))
    compare(native, original, script_walker(winning_commands(game)))
    assert native.won and original.won


@pytest.mark.slow
@pytest.mark.usefixtures("original_engine")
def test_both_engines_agree_on_real_games(alfworld_archive: Path) -> None:
    """All of them: benchmarks/alfworld_parity.py."""
    texts = engine_texts()
    newer = texts["domain_move"], texts["grammar_move"]
    for number, text in enumerate(real_games(alfworld_archive, GAMES, seed=1)):
        older = parse_game(text, "game")
        for data in (older, with_newer_grammar(older, *newer)):
            game = CompiledGame.from_json(data)
            native, original = NativeEngine(game), TextWorldEngine(data)
            assert compare(native, original, random_walker(20, number)) == 20
            compare(native, original, script_walker(winning_commands(game)))
            assert native.won


@pytest.mark.usefixtures("original_engine")
def test_the_comparison_notices_a_difference(tiny_game: TinyGame) -> None:
    native = NativeEngine(CompiledGame.from_json(tiny_game(grammar="put")))
    with pytest.raises(ParityError, match="go to shelf 1"):
        compare(
            native, TextWorldEngine(tiny_game(grammar="move")), script_walker(["go to shelf 1"])
        )


@pytest.mark.usefixtures("original_engine")
def test_saved_states_are_replayed_and_the_command_line_is_left_alone(tiny_game: TinyGame) -> None:
    argv = list(sys.argv)
    engine = TextWorldEngine(tiny_game())
    engine.reset()
    engine.step("go to shelf 1")
    engine.step("take bowl 1 from shelf 1")
    state, commands = engine.save_state(), engine.admissible_commands()
    engine.step("go to fridge 1")
    engine.restore_state(state)
    assert engine.admissible_commands() == commands
    assert engine.step("inventory") == ("You are carrying: a bowl 1.", False)
    assert sys.argv == argv
    with pytest.raises(TypeError, match="CommandHistory"):
        engine.restore_state([])


@pytest.mark.usefixtures("original_engine")
def test_a_goal_out_of_reach_is_reported_as_unsolvable(tiny_game: TinyGame) -> None:
    data = tiny_game()
    problem = data["pddl_problem"].replace(
        "(inReceptacle ?o ?r) (objectType ?o AppleType)",
        "(inReceptacle ?o ?r) (objectType ?o StatueType)",
    )
    with pytest.raises(UnsolvableGameError, match="cannot load"):
        TextWorldEngine({**data, "pddl_problem": problem})


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        ("in a rule", "{r.indefinite}", "{CODE}"),
        ("in a list", "[{r.name | ", "[{CODE | "),
        ("in a command", 'template :: "look"', 'template :: "look{CODE}"'),
        ("hidden in a name", "{r.indefinite}", "{r.__class__}"),
        ("in a call", "{r.indefinite}", "{r.name.upper()}"),
    ],
)
@pytest.mark.usefixtures("original_engine")
def test_a_grammar_that_holds_code_is_refused_and_nothing_runs(
    tiny_game: TinyGame, tmp_path: Path, place: str, old: str, new: str
) -> None:
    data, marker = tiny_game(), tmp_path / "ran"
    assert old in data["grammar"], place
    grammar = data["grammar"].replace(old, new.replace("CODE", f"open('{marker}','w').close()"))
    with pytest.raises(GameFileError, match="would run as Python"):
        engine = TextWorldEngine({**data, "grammar": grammar})
        engine.reset()
        engine.step("look")
    assert not marker.exists()
