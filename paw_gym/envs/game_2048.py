"""2048: slide equal tiles together until the target tile appears; where tiles appear is seeded."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import log2

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv
from paw_gym.generated import require_in, sampled_tasks, shared_sets

GENERATOR = 1
"""raised when the same arguments give other games"""
SIZES, TARGETS = range(3, 6), tuple(2**power for power in range(4, 12))
MOVES = ("up", "down", "left", "right")
_TWO = 0.9
"""probability that a new tile is a 2; otherwise it is a 4 (Cirulli 2014)"""
_BEAM = 8

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""rows of tiles; 0 is an empty cell"""


@lru_cache(maxsize=2**18)
def _slid(row: Row) -> Row:
    """A row after a move to the left: each tile merges at most once."""
    merged: list[int] = []
    open_to_merge = False
    for tile in filter(None, row):
        if open_to_merge and merged[-1] == tile:
            merged[-1], open_to_merge = 2 * tile, False
        else:
            merged.append(tile)
            open_to_merge = True
    return (*merged, *[0] * (len(row) - len(merged)))


def slide(board: Board, move: str) -> Board:
    """The board after a move, before a new tile appears."""
    if move in ("up", "down"):
        return tuple(zip(*slide(tuple(zip(*board, strict=True)), _ACROSS[move]), strict=True))
    if move == "right":
        return tuple(_slid(row[::-1])[::-1] for row in board)
    return tuple(map(_slid, board))


_ACROSS = {"up": "left", "down": "right"}


def possible(board: Board) -> dict[str, Board]:
    """The board after each move that changes it, by move."""
    slid = {move: slide(board, move) for move in MOVES}
    return {move: after for move, after in slid.items() if after != board}


def spawn(board: Board, seed: int, number: int) -> Board:
    """The board with one more tile."""
    rng = random.Random(f"2048/{seed}/{number}")
    return _with_tile(board, *rng.choice(_empty(board)), 2 if rng.random() < _TWO else 4)


def _empty(board: Board) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(board) for c, tile in enumerate(row) if not tile]


def _with_tile(board: Board, r: int, c: int, tile: int) -> Board:
    return (*board[:r], (*board[r][:c], tile, *board[r][c + 1 :]), *board[r + 1 :])


@lru_cache(maxsize=2**18)
def _row_value(row: Row) -> float:
    """Prefers empty cells, equal neighbours, and tiles that grow in one direction."""
    powers = [log2(tile) if tile else 0.0 for tile in row]
    steps = [a**3 - b**3 for a, b in pairwise(powers)]
    falls = min(sum(s for s in steps if s > 0), -sum(s for s in steps if s < 0))
    merges = sum(a == b > 0 for a, b in pairwise(powers))
    return 40 * row.count(0) + 60 * merges - falls


def value(board: Board) -> float:
    """How good a board looks, summed over its rows and columns."""
    return sum(map(_row_value, board)) + sum(map(_row_value, zip(*board, strict=True)))


def best_move(board: Board) -> str | None:
    """The move with the greatest expected value after the next tile and the next move (expectimax)."""
    moves = possible(board)
    return max(moves, key=lambda move: _expected(moves[move]), default=None)


def _expected(board: Board) -> float:
    cells = _empty(board)
    total = 0.0
    for r, c in cells:
        for tile, probability in ((2, _TWO), (4, 1 - _TWO)):
            following = possible(_with_tile(board, r, c, tile)).values()
            total += probability * max(map(value, following), default=-1e6)
    return total / len(cells)


@shared_sets(maxsize=16)
def tasks_2048(split: str, size: int, target: int, num_tasks: int | None) -> TaskSet:
    """The games of a split; ``data`` of a task is the seed of its tiles."""
    require_in("size", size, SIZES)
    if isinstance(target, float) or target not in TARGETS:
        raise ValueError(f"target is one of {', '.join(map(str, TARGETS))}, got {target!r}.")
    # while the other cells hold half of it, a quarter, ..., down to two 4s that merge
    largest = 2 ** (size**2 + 1)
    if target > largest:
        raise ValueError(
            f"target={target} cannot be reached on a board of size={size}, whose largest possible tile is "
            f"{largest}: choose a larger size or a smaller target."
        )
    family = f"2048-{GENERATOR}/{size}x{size}/{target}"
    instruction = (
        "Slide all tiles of the board up, down, left or right, as far as they go. Two equal tiles that "
        "meet become one tile of twice the number. After each move a new 2 or 4 appears in an empty cell "
        f"(.). Make a tile of {target} before no move is left."
    )

    return sampled_tasks(
        family,
        split,
        lambda rng: rng.getrandbits(48),
        lambda seed: f"2048/{seed}",
        lambda task_id, seed: Task(task_id, instruction, f"{target}", seed),
        num_tasks,
    )


class Game2048Env(TextEnv):
    """2048: every move is followed by a random tile, so plans have to hold for several futures.

    ## Description
    The sliding game 2048 (Cirulli 2014), played up to a target tile. Nothing to download.

    ## Action Space
    ``up``, ``down``, ``left``, ``right``. ``info["admissible_actions"]`` lists those that change the board;
    anything else changes nothing and is invalid.

    ## Observation Space
    What happened, and the board, a line for each row; ``.`` is an empty cell.

    ## Rewards
    1 when the target tile appears, else 0. ``info["score"]`` is the logarithm of the largest tile divided by
    that of the target. Behind ``AgentInterface``: 10 on success, -0.1 for an invalid response.

    ## Starting State
    Two tiles. ``seed`` or ``options`` choose the task, whose own seed decides all tiles that appear.

    ## Episode End
    Terminated with the target tile, or when no move is left; truncated after ``max_steps`` (300).

    ## Arguments
    ``split``: ``train``, ``valid`` or ``test``, disjoint by the seed of the tiles. ``size`` (3 to 5): rows
    and columns. ``target``: a power of two from 16 to 2048 (to 1024 on 3 rows). ``num_tasks``: size
    of the split.
    """

    agent = AgentDefaults(template="board", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        split: str = "train",
        size: int = 4,
        target: int = 256,
        max_steps: int = 300,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(tasks_2048(split, size, target, num_tasks), max_steps, render_mode)
        self.size, self.target = size, target

    def _start(self, task: Task) -> Outcome:
        empty: Board = ((0,) * self.size,) * self.size
        board = spawn(spawn(empty, task.data, 0), task.data, 1)
        self.state: tuple[Board, int] = board, 2
        return self._outcome("The board has two tiles.")

    def _act(self, action: str) -> Outcome:
        board, number = self.state
        after = possible(board).get(action)
        if after is None:
            return self._outcome("Nothing moves.", valid=False)
        self.state = spawn(after, self.task.data, number), number + 1
        return self._outcome(f"You slide {action}, and a new tile appears.")

    def _outcome(self, event: str, valid: bool = True) -> Outcome:
        board, moves = self.state[0], list(possible(self.state[0]))
        largest = max(map(max, board))
        width = len(str(largest))
        rows = [" ".join(f"{tile or '.':>{width}}" for tile in row) for row in board]
        return Outcome(
            "\n".join([event, *rows]),
            reward=float(largest >= self.target),
            terminated=largest >= self.target or not moves,
            success=largest >= self.target,
            score=min(1.0, log2(largest) / log2(self.target)),
            action_is_valid=valid,
            admissible_actions=moves,
        )

    def reference_solution(self) -> list[str]:
        """Moves that reach the target with the tiles that will appear: beam search by ``value``."""
        number = self.state[1]
        beam: dict[Board, list[str]] = {self.state[0]: []}
        while beam:
            for board, path in beam.items():
                if max(map(max, board)) >= self.target:
                    return path
            following: dict[Board, list[str]] = {}
            for board, path in beam.items():
                for move, after in possible(board).items():
                    following.setdefault(spawn(after, self.task.data, number), [*path, move])
            number += 1
            best = sorted(following, key=lambda board: (-value(board), board))[:_BEAM]
            beam = {board: following[board] for board in best}
        return []

    def expert(self) -> Callable[[], str]:
        """Expectimax, which does not know the tiles that will appear."""

        def act() -> str:
            move = best_move(self.state[0])
            if move is None:
                raise StopIteration
            return move

        return act
