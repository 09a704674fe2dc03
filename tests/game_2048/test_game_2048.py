"""2048: its rules, tiles that depend on the task alone, and the two ways to play it well."""

from __future__ import annotations

import random

import gymnasium as gym
import pytest

from paw_gym.envs.game_2048 import Game2048Env, best_move, possible, slide, spawn, tasks_2048
from paw_gym.generated import SPLITS


@pytest.mark.parametrize(
    ("row", "after"),
    [
        ((0, 2, 0, 2), (4, 0, 0, 0)),
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((2, 2, 4, 0), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((2, 4, 2, 4), (2, 4, 2, 4)),
    ],
)
def test_a_row(row: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert slide((row,), "left") == (after,)
    assert slide((row[::-1],), "right") == (after[::-1],)
    column = tuple((tile,) for tile in row)
    assert slide(column, "up") == tuple((tile,) for tile in after)
    assert slide(column[::-1], "down") == tuple((tile,) for tile in after[::-1])


def test_only_moves_that_change_the_board_are_possible() -> None:
    assert list(possible(((2, 4), (4, 2)))) == []
    assert possible(((2, 0), (4, 0))) == {"right": ((0, 2), (0, 4))}


def test_new_tiles() -> None:
    board = ((0,) * 4,) * 4
    tiles = [max(map(max, spawn(board, 1, number))) for number in range(2000)]
    assert set(tiles) == {2, 4} and 0.87 < tiles.count(2) / 2000 < 0.93
    assert spawn(board, 1, 5) == spawn(board, 1, 5)
    assert len({spawn(board, seed, 0) for seed in range(50)}) > 10


def test_the_same_task_has_the_same_tiles_whatever_the_seed() -> None:
    env, task_id = Game2048Env(), Game2048Env().tasks.ids[3]
    first = env.reset(seed=0, options={"task_id": task_id})[0]
    assert env.reset(seed=1, options={"task_id": task_id})[0] == first
    after = env.step(best_move(env.state[0]) or "")[0]
    env.reset(seed=2, options={"task_id": task_id})
    assert env.step(best_move(env.state[0]) or "")[0] == after


def test_no_game_is_in_two_splits() -> None:
    found = {split: {task.data for task in tasks_2048(split, 4, 256, 300)} for split in SPLITS}
    assert all(len(seeds) == 300 for seeds in found.values())
    assert not found["train"] & found["valid"] and not found["train"] & found["test"]
    assert not found["valid"] & found["test"]


@pytest.mark.parametrize(("size", "target"), [(3, 64), (4, 128)])
def test_expectimax_and_the_reference_reach_the_target(size: int, target: int) -> None:
    env = Game2048Env("test", size, target)
    for index in range(3):
        env.reset(seed=0, options={"task_index": index})
        act, over = env.expert(), False
        while not over:
            *_, over, _, info = env.step(act())
        assert info["success"] and info["score"] == 1.0
        env.reset(seed=0, options={"task_index": index})
        solution = env.reference_solution()
        answers = [env.step(action) for action in solution]
        assert answers[-1][2] and answers[-1][4]["success"]


def test_a_lost_game_ends() -> None:
    env = gym.make("paw_gym/2048-v0", size=3, target=1024).unwrapped
    _, info = env.reset(seed=0)
    rng, over = random.Random(0), False
    while not over:
        observation, _, over, _, info = env.step(rng.choice(info["admissible_actions"]))
    assert (
        not info["success"] and 0 < info["score"] < 1 and "." not in observation.split("\n", 1)[1]
    )
    assert info["admissible_actions"] == [] and env.reference_solution() == []
    with pytest.raises(StopIteration):
        env.expert()()


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"split": "trian"}, "Unknown split 'trian'. Did you mean 'train'"),
        ({"size": 2}, "size is 3 to 5, got 2"),
        ({"size": [3, 4]}, r"size is a whole number, 3 to 5, got \[3, 4\]"),
        ({"target": 100}, "target is one of 16, 32, .*2048, got 100"),
        ({"target": 256.0}, "target is one of 16, 32, .*2048, got 256.0"),
        ({"size": 3, "target": 2048}, "2048 cannot be reached .*largest possible tile is 1024"),
    ):
        with pytest.raises(ValueError, match=message):
            Game2048Env(**kwargs)  # type: ignore[arg-type]
