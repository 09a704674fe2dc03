"""Sudoku: puzzles with exactly one solution, the actions on them, and the splits."""

from __future__ import annotations

import random

import pytest

import paw_gym
from paw_gym.envs.sudoku import (
    SudokuEnv,
    candidates,
    canonical,
    generate_puzzle,
    solutions,
    sudoku_tasks,
)
from paw_gym.generated import SPLITS


def board(observation: str) -> str:
    return observation.partition("\n")[2]


@pytest.mark.parametrize(("size", "givens"), [(4, 4), (4, 6), (9, 30)])
def test_a_puzzle_has_exactly_one_solution(size: int, givens: int) -> None:
    for number in range(4):
        puzzle = generate_puzzle(random.Random(number), size, givens)
        assert len(puzzle) - puzzle.count(0) == givens
        (solution,) = solutions(puzzle)
        assert all(given in (0, digit) for given, digit in zip(puzzle, solution, strict=True))
        for start in range(size):
            rows, columns = solution[start * size : (start + 1) * size], solution[start::size]
            assert sorted(rows) == sorted(columns) == list(range(1, size + 1))
        assert all(solution[cell] in candidates(solution, cell) for cell in range(size**2))


def test_a_puzzle_without_a_digit_that_it_needs_has_several_solutions() -> None:
    """So that the test above can fail."""
    puzzle = generate_puzzle(random.Random(0), 4, 4)
    given = [cell for cell, digit in enumerate(puzzle) if digit]
    fewer = [(*puzzle[:cell], 0, *puzzle[cell + 1 :]) for cell in given]
    assert all(len(list(solutions(grid))) > 1 for grid in fewer)


def test_no_puzzle_is_in_two_splits() -> None:
    """Nor one that is the same but for its orientation and the names of its digits."""
    found = {s: {canonical(t.data) for t in sudoku_tasks(s, 4, 8, 40)} for s in SPLITS}
    assert all(len(puzzles) > 20 for puzzles in found.values())
    assert not found["train"] & found["valid"] and not found["train"] & found["test"]
    assert not found["valid"] & found["test"]
    puzzle = generate_puzzle(random.Random(1), 4, 8)
    turned = tuple(puzzle[4 * (3 - cell % 4) + cell // 4] for cell in range(16))
    renamed = tuple({0: 0, 1: 3, 2: 1, 3: 4, 4: 2}[digit] for digit in turned)
    assert renamed != puzzle and canonical(renamed) == canonical(puzzle)


def test_a_wrong_digit_is_taken_back() -> None:
    env = SudokuEnv(split="test")
    observation, info = env.reset(seed=0)
    assert board(observation).count(".") == 10 and len(observation.split("\n")) == 5
    (solution,) = solutions(env.task.data)
    wrong = next(
        action
        for action in info["admissible_actions"]
        if solution[4 * int(action.split()[4]) + int(action[-1]) - 5] != int(action.split()[1])
    )
    observation, _, _, _, info = env.step(wrong)
    assert info["action_is_valid"] and info["score"] == 0 and board(observation).count(".") == 9
    clear = f"clear {wrong.partition('at ')[2]}"
    assert clear in info["admissible_actions"] and env.reference_solution()[0] == clear
    act, over = env.expert(), False
    while not over:
        _, reward, over, _, info = env.step(act())
    assert reward == info["score"] == 1.0 and info["success"]


def test_what_is_not_possible() -> None:
    env = SudokuEnv()
    before, _ = env.reset(seed=0)
    given = next(cell for cell, digit in enumerate(env.task.data) if digit)
    at = f"row {given // 4 + 1} column {given % 4 + 1}"
    for action in (f"clear {at}", f"place 1 at {at}", "place 9 at row 9 column 9", "look"):
        after, _, _, _, info = env.step(action)
        assert not info["action_is_valid"] and board(after) == board(before)


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"split": "trian"}, "Unknown split 'trian'. Did you mean 'train'"),
        ({"size": 6}, "size is 4 or 9, got 6"),
        ({"size": 4.0}, "size is 4 or 9, got 4.0"),
        ({"size": [4, 9]}, r"size is 4 or 9, got \[4, 9\]"),
        ({"givens": 6.0}, "givens of a puzzle of size 4 is a whole number, 4 to 14, got 6.0"),
        ({"size": 9, "givens": 8}, "givens of a puzzle of size 9 is 28 to 75, got 8"),
    ):
        with pytest.raises(ValueError, match=message):
            SudokuEnv(**kwargs)  # type: ignore[arg-type]


def test_the_contract_of_the_large_form() -> None:
    paw_gym.check_text_env(
        "paw_gym/Sudoku-v0", size=9, givens=70, tasks=1, time_limit=None
    ).raise_for_failures()
