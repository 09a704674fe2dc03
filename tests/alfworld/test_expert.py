"""The experts: the planner wins from anywhere, the sweep wins by the text and can be copied."""

import itertools
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paw_gym.envs.alfworld.env import ALFWorldEnv
from paw_gym.envs.alfworld.experts import SweepExpert, parse_task
from paw_gym.envs.alfworld.games import GameIndex, load_compiled
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.problem import TASK_TYPES
from paw_gym.envs.alfworld.procedural.generate import SPLITS, generate_game
from paw_gym.envs.alfworld.procedural.plan import NoPlanError, solve

STEPS = 50


def engine_for(split: str, task_type: str, seed: int, **settings: Any) -> NativeEngine:
    return NativeEngine(CompiledGame.from_json(generate_game(split, task_type, seed, **settings)))


def play(engine: NativeEngine) -> list[tuple[str, str]]:
    """What the sweep read and what it did; ends when won or after 50 steps."""
    expert, observation = SweepExpert(), engine.reset()
    expert.reset(observation)
    episode: list[tuple[str, str]] = []
    while not engine.won and len(episode) < STEPS:
        command = expert.act(observation, engine.admissible_commands())
        assert command in engine.admissible_commands()
        episode.append((observation, command))
        observation, _ = engine.step(command)
    return episode


def check_the_sweep(engines: Iterable[NativeEngine]) -> None:
    """It wins nearly all of them, and quickly."""
    played = [(len(play(engine)), engine.won) for engine in engines]
    lengths = [length for length, won in played if won]
    assert len(lengths) >= 0.97 * len(played)
    assert sum(lengths) / len(lengths) < 20


def wander(engine: NativeEngine, steps: int, seed: int) -> Iterator[str]:
    """Random steps that do something; yields what they answer. Stops short of winning."""
    rng = random.Random(seed)
    for _ in range(steps):
        state = engine.save_state()
        observation, won = engine.step(rng.choice(engine.admissible_commands()))
        if won:
            engine.restore_state(state)
            return
        yield observation


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_planner_wins_from_any_state(task_type: str) -> None:
    for seed in range(25):
        engine = engine_for("train", task_type, seed, grammar=("put", "move")[seed % 2])
        list(wander(engine, 40, seed))
        before = engine.save_state()
        commands = solve(engine)
        assert engine.save_state() == before
        for command in commands:
            assert command in engine.admissible_commands()
            engine.step(command)
        assert engine.won
        assert len(commands) <= 16


def test_a_goal_out_of_reach_is_said_to_be() -> None:
    game = generate_game("train", "pick_heat_then_place_in_recep", 0)
    without = re.sub(r"(?m)^.*\bMicrowave_bar_.*$\n", "", game["pddl_problem"])
    with pytest.raises(NoPlanError, match=r"microwave|heat"):
        solve(NativeEngine(CompiledGame.from_json({**game, "pddl_problem": without})))


@pytest.mark.parametrize("split", SPLITS)
def test_the_sweep_wins_quickly_by_the_text_alone(split: str) -> None:
    check_the_sweep(
        engine_for(split, task_type, seed, grammar=("put", "move")[seed % 2])
        for task_type in TASK_TYPES
        for seed in range(12)
    )


def test_the_sweep_goes_on_from_where_others_have_led() -> None:
    won = 0
    for number, task_type in enumerate(TASK_TYPES * 6):
        engine, expert = engine_for("train", task_type, number), SweepExpert()
        observation = engine.reset()
        expert.reset(observation)
        for later in wander(engine, 12, number):
            expert.act(observation, engine.admissible_commands())
            observation = later
        for _ in range(STEPS):
            if engine.won:
                break
            observation, _ = engine.step(expert.act(observation, engine.admissible_commands()))
        won += engine.won
    assert won >= 0.95 * 36


def test_where_the_sweep_looks_next_follows_from_its_place() -> None:
    """So that a policy without memory can learn it: one successor for each place in a room."""
    searches = 0
    for task_type in TASK_TYPES:
        for seed in range(10):
            engine = engine_for("train", task_type, seed)
            successor: dict[str, str] = {}
            place, empty_handed = "the middle", True
            for observation, command in play(engine):
                arrived = re.search(r"(?:On the|The|open the) ([a-z]+ \d+)", observation)
                place = arrived.group(1) if arrived else place
                empty_handed &= "You pick up" not in observation
                if empty_handed and command.startswith("go to "):
                    assert successor.setdefault(place, command) == command
                    searches += 1
    assert searches > 100


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_sentence_means_what_the_engine_checks(task_type: str) -> None:
    for split, seed in itertools.product(SPLITS, range(10)):
        game = CompiledGame.from_json(generate_game(split, task_type, seed))
        assert parse_task(NativeEngine(game).reset()) == game.goal
        assert game.goal.task_type == task_type


def test_another_wording_is_refused() -> None:
    with pytest.raises(ValueError, match="wash the dishes"):
        SweepExpert().reset("You see a shelf 1.\n\nYour task is to: wash the dishes.")


def test_the_sweep_is_asked_for_at_the_start() -> None:
    env = ALFWorldEnv()
    env.reset(seed=0)
    act = env.expert()
    for _ in range(2):
        env.step(act())
    with pytest.raises(RuntimeError, match="2 actions were taken: call `expert"):
        env.expert()


def test_both_experts_win_official_games(alfworld_data: Path) -> None:
    index = GameIndex(alfworld_data, "train")
    compiled = [load_compiled(index.path(task_id)) for task_id in list(index.games)[:120]]
    for game in compiled:
        engine = NativeEngine(game)
        for command in solve(NativeEngine(game)):
            engine.step(command)
        assert engine.won, game.task
    check_the_sweep(map(NativeEngine, compiled))
