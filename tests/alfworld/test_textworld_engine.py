"""The original engine behind our interface, ours against it, and the environment around both."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playing import play

from paw_gym import make_agent_env
from paw_gym.envs.alfworld.env import ALFWorldEnv
from paw_gym.envs.alfworld.games import GameIndex, load_game
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.problem import GameFileError, UnsolvableGameError
from paw_gym.envs.alfworld.procedural.rooms import engine_texts
from paw_gym.envs.alfworld.textworld_engine import (
    ParityError,
    TextWorldEngine,
    compare,
    random_walker,
    script_walker,
    winning_commands,
    with_newer_grammar,
)

TinyGame = Callable[..., dict[str, Any]]


def test_without_the_extra_the_error_names_it(
    tiny_game: TinyGame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[alfworld\]'"):
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
def test_both_engines_agree_on_real_games(alfworld_data: Path) -> None:
    """All of them: benchmarks/alfworld_parity.py."""
    texts = engine_texts()
    newer = texts["domain_move"], texts["grammar_move"]
    index = GameIndex(alfworld_data, "train")
    for number, task_id in enumerate(random.Random(1).sample(list(index.games), 2)):
        older = load_game(index.path(task_id))
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
def test_saved_states_leave_the_command_line_alone(tiny_game: TinyGame) -> None:
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
def test_a_grammar_that_holds_code_is_refused(
    tiny_game: TinyGame, tmp_path: Path, place: str, old: str, new: str
) -> None:
    data, marker = tiny_game(), tmp_path / "ran"
    assert old in data["grammar"], place
    grammar = data["grammar"].replace(old, new.replace("CODE", f"open('{marker}','w').close()"))
    with pytest.raises(GameFileError, match="none of the known ALFWorld grammars"):
        engine = TextWorldEngine({**data, "grammar": grammar})
        engine.reset()
        engine.step("look")
    assert not marker.exists()


def test_the_prompt_repeats_neither_banner_nor_task() -> None:
    env = make_agent_env("paw_gym/ALFWorld-v0", split="valid_seen")
    prompt, info = env.reset(seed=0)
    assert "TextWorld" not in prompt
    assert prompt.count(info["instruction"]) == 1
    assert "help" not in info["admissible_actions"]
    _, reward, terminated, _, info = play(env, env.reference_solution())[-1]
    assert (terminated, reward, info["success"]) == (True, 10.0, True)
    assert info["transition"].next_observation


@pytest.mark.usefixtures("original_engine")
def test_the_original_engine_plays_in_the_same_environment() -> None:
    envs = [ALFWorldEnv("valid_seen", engine=engine) for engine in ("native", "textworld")]
    native, original = envs
    assert native.reset(seed=5) == original.reset(seed=5)
    first, *rest = native.reference_solution()
    assert native.step(first) == original.step(first)
    assert original.reference_solution() == native.reference_solution()
    state = original.save_state()
    for action in ["go nowhere", *rest]:
        answers = [env.step(action) for env in envs]
        assert answers[0] == answers[1]
    assert answers[1][2]
    original.restore_state(state)
    assert play(original, rest)[-1][4]["success"]
