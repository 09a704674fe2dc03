"""Sokoban: its rules, levels that can be solved and belong to one split, and the solver."""

from __future__ import annotations

import random

import gymnasium as gym
import pytest

import paw_gym  # noqa: F401
from paw_gym.envs.sokoban import SPLITS, Level, SokobanEnv, _canonical, generate_level, solve

#   #####
#   #@$.#   cells 6, 7, 8 of a room of width 5
#   #####
CORRIDOR = Level(5, frozenset({6, 7, 8}), frozenset({8}), (6, frozenset({7})))


def test_the_rules() -> None:
    start = CORRIDOR.start
    assert CORRIDOR.text(start).split("\n")[1] == "#@$.#"
    pushed = CORRIDOR.after(start, "right")
    assert pushed == (7, frozenset({8})) and CORRIDOR.text(pushed).split("\n")[1] == "#-@*#"
    assert CORRIDOR.after(pushed, "right") is None  # a wall behind the box
    assert CORRIDOR.after(start, "up") is None and CORRIDOR.after(start, "left") is None
    two = Level(6, frozenset({7, 8, 9, 10}), frozenset({9, 10}), (7, frozenset({8, 9})))
    assert two.after(two.start, "right") is None  # two boxes at once
    assert Level(5, CORRIDOR.floor, frozenset({6}), start).text(start).split("\n")[1] == "#+$-#"


@pytest.mark.parametrize(("size", "boxes"), [(5, 1), (7, 2), (8, 3)])
def test_every_level_can_be_solved_and_begins_unsolved(size: int, boxes: int) -> None:
    for number in range(12):
        level = generate_level("train", number, size, boxes)
        assert level == generate_level("train", number, size, boxes)
        assert len(level.start[1]) == len(level.goals) == boxes
        assert not level.start[1] & level.goals and level.start[0] not in level.start[1]
        state = level.start
        for before, move in solve(level, state) or []:
            assert before == state
            following = level.after(state, move)
            assert following is not None
            state = following
        assert state[1] == level.goals


def test_the_solver_finds_the_shortest_way() -> None:
    """Against breadth-first search, which needs no estimate."""
    for number in range(12):
        level = generate_level("valid", number, 6, 2)
        seen, layer, depth = {level.start}, [level.start], 0
        while all(boxes != level.goals for _, boxes in layer):
            after = {s for state in layer for m in level.moves if (s := level.after(state, m))}
            layer, depth = list(after - seen), depth + 1
            seen |= after
        assert len(solve(level, level.start) or []) == depth


def test_a_level_that_is_lost_has_no_solution() -> None:
    corner = Level(6, frozenset({7, 8, 9, 13, 14, 15}), frozenset({9}), (8, frozenset({13})))
    assert solve(corner, corner.start) is None
    env = SokobanEnv(size=5, boxes=1)
    env.reset(seed=0)
    rng = random.Random(0)
    while env.reference_solution():
        _, _, terminated, truncated, _ = env.step(rng.choice(env.last_info["admissible_actions"]))
        if terminated or truncated:
            env.reset(seed=rng.randrange(100))
    with pytest.raises(StopIteration):
        env.expert()()


def test_no_level_is_in_two_splits() -> None:
    """Nor a rotation or reflection of it."""
    found = {
        split: {_canonical(generate_level(split, number, 6, 1)) for number in range(150)}
        for split in SPLITS
    }
    assert all(len(levels) > 30 for levels in found.values())
    assert not found["train"] & found["valid"] and not found["train"] & found["test"]
    assert not found["valid"] & found["test"]
    level = generate_level("train", 0, 5, 1)
    turned = {cell: 5 * (cell % 5) + 4 - cell // 5 for cell in range(25)}
    rotated = Level(
        5,
        frozenset(map(turned.__getitem__, level.floor)),
        frozenset(map(turned.__getitem__, level.goals)),
        (turned[level.start[0]], frozenset(map(turned.__getitem__, level.start[1]))),
    )
    assert rotated != level and _canonical(rotated) == _canonical(level)


def test_an_episode() -> None:
    env = gym.make("paw_gym/Sokoban-v0", split="test").unwrapped
    observation, info = env.reset(seed=1)
    assert info["score"] == 0.0 and info["task_type"] == "2_boxes"
    board = observation.partition("\n")[2]
    observation, _, _, _, info = env.step("jump")
    assert not info["action_is_valid"] and observation == f"Nothing moves.\n{board}"
    act, over = env.expert(), False
    while not over:
        _, reward, over, _, info = env.step(act())
    assert reward == info["score"] == 1.0 and info["success"]


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"split": "trian"}, "Unknown split 'trian'. Did you mean 'train'"),
        ({"size": 4}, "size is 5 to 10, got 4"),
        ({"boxes": 9}, "boxes is 1 to 3, got 9"),
        ({"boxes": True}, "boxes is a whole number, 1 to 3, got True"),
        ({"num_tasks": -1}, "num_tasks is -1; expected a whole number of 1 or more, or None"),
        ({"num_tasks": "3", "size": [6, 7]}, "num_tasks is '3'; expected a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            SokobanEnv(**kwargs)  # type: ignore[arg-type]
