"""Sokoban, Sudoku and 2048: their rules, their solvers, and splits that share no task."""

from __future__ import annotations

import random

import pytest
from playing import play

from paw_gym.envs.game_2048 import Game2048Env, best_move, possible, slide, spawn
from paw_gym.envs.sokoban import SPLITS, Level, SokobanEnv, _canonical, generate_level, solve
from paw_gym.envs.sudoku import SudokuEnv, candidates, canonical, generate_puzzle, solutions

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
        assert len(solve(level, level.start)) == depth


def test_a_level_that_is_lost_has_no_solution() -> None:
    corner = Level(6, frozenset({7, 8, 9, 13, 14, 15}), frozenset({9}), (8, frozenset({13})))
    assert solve(corner, corner.start) == []
    env = SokobanEnv(size=5, boxes=1)
    env.reset(seed=0)
    rng = random.Random(0)
    while env.reference_solution():
        _, _, terminated, truncated, _ = env.step(rng.choice(env.list_actions()))
        if terminated or truncated:
            env.reset(seed=rng.randrange(100))
    with pytest.raises(StopIteration):
        env.expert()()


def test_no_level_is_in_two_splits() -> None:
    """Nor a rotation or reflection of it."""
    found = [{_canonical(generate_level(s, number, 6, 1)) for number in range(150)} for s in SPLITS]
    assert min(map(len, found)) > 30
    assert len(set.union(*found)) == sum(map(len, found))
    level = generate_level("train", 0, 5, 1)
    turned = {cell: 5 * (cell % 5) + 4 - cell // 5 for cell in range(25)}
    floor, goals, boxes = (
        frozenset(turned[cell] for cell in cells)
        for cells in (level.floor, level.goals, level.start[1])
    )
    rotated = Level(5, floor, goals, (turned[level.start[0]], boxes))
    assert rotated != level and _canonical(rotated) == _canonical(level)


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


def test_a_puzzle_that_lacks_a_digit_has_several_solutions() -> None:
    """So that the test above can fail."""
    puzzle = generate_puzzle(random.Random(0), 4, 4)
    given = [cell for cell, digit in enumerate(puzzle) if digit]
    fewer = [(*puzzle[:cell], 0, *puzzle[cell + 1 :]) for cell in given]
    assert all(len(list(solutions(grid))) > 1 for grid in fewer)


def test_a_turned_or_renamed_puzzle_is_the_same() -> None:
    """So that both are in one split."""
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
    _, reward, _, _, info = play(env, env.expert())[-1]
    assert reward == info["score"] == 1.0 and info["success"]


def test_what_is_not_possible() -> None:
    env = SudokuEnv()
    before, _ = env.reset(seed=0)
    given = next(cell for cell, digit in enumerate(env.task.data) if digit)
    at = f"row {given // 4 + 1} column {given % 4 + 1}"
    for action in (f"clear {at}", f"place 1 at {at}", "place 9 at row 9 column 9", "look"):
        after, _, _, _, info = env.step(action)
        assert not info["action_is_valid"] and board(after) == board(before)


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


def test_a_task_has_the_same_tiles_whatever_the_seed() -> None:
    env, task_id = Game2048Env(), Game2048Env().tasks.ids[3]
    first = env.reset(seed=0, options={"task_id": task_id})[0]
    assert env.reset(seed=1, options={"task_id": task_id})[0] == first
    after = env.step(best_move(env.state[0]) or "")[0]
    env.reset(seed=2, options={"task_id": task_id})
    assert env.step(best_move(env.state[0]) or "")[0] == after


@pytest.mark.parametrize(("size", "target"), [(3, 64), (4, 128)])
def test_expectimax_and_the_reference_reach_the_target(size: int, target: int) -> None:
    env = Game2048Env("test", size, target)
    for index in range(3):
        for actions in (env.expert, env.reference_solution):
            env.reset(seed=0, options={"task_index": index})
            info = play(env, actions())[-1][4]
            assert info["success"] and info["score"] == 1.0


def test_a_lost_game_ends() -> None:
    env = Game2048Env(size=3, target=1024)
    env.reset(seed=0)
    rng = random.Random(0)
    board, *_, info = play(env, lambda: rng.choice(env.list_actions()))[-1]
    assert not info["success"] and 0 < info["score"] < 1 and "." not in board.split("\n", 1)[1]
    assert info["admissible_actions"] == [] and env.reference_solution() == []
    with pytest.raises(StopIteration):
        env.expert()()
