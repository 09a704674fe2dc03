"""Sokoban: push boxes onto goals, in rooms that are made by seed and solvable by construction."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv, split_of_key
from paw_gym.generated import SPLITS, TASKS, require_count, require_in, shared_sets
from paw_gym.internals.naming import require_choice

SIZES, BOXES = range(5, 11), range(1, 4)
GENERATOR = 1
"""raised when the generator gives other levels for the same arguments"""
_PULLS = (8, 24)
"""fewest and most boxes pulled when a level is made, once for each box"""
INSTRUCTION = (
    "Push every box onto a goal. You (@) walk up, down, left and right, and push a box ($) by walking "
    "against it; a box cannot be pulled, and two cannot be pushed at once. # is a wall, . a goal, * a "
    "box on a goal, + you on a goal, - free floor."
)

State = tuple[int, frozenset[int]]
"""cell of the player, cells of the boxes"""


@dataclass(frozen=True)
class Level:
    """A room and how it begins. A cell is its row times ``width`` plus its column."""

    width: int
    floor: frozenset[int]
    """cells without a wall"""
    goals: frozenset[int]
    start: State

    @property
    def moves(self) -> dict[str, int]:
        """The distance to the next cell, by action."""
        return {"up": -self.width, "down": self.width, "left": -1, "right": 1}

    def after(self, state: State, move: str) -> State | None:
        """The state after a move; ``None`` if a wall or a second box is in the way."""
        (player, boxes), by = state, self.moves[move]
        target, beyond = player + by, player + 2 * by
        if target not in self.floor:
            return None
        if target not in boxes:
            return target, boxes
        if beyond not in self.floor or beyond in boxes:
            return None
        return target, boxes - {target} | {beyond}

    def text(self, state: State) -> str:
        """The room, a line for each row."""
        player, boxes = state

        def sign(cell: int) -> str:
            if cell not in self.floor:
                return "#"
            marks = {cell == player: "@+", cell in boxes: "$*"}.get(True, "-.")
            return marks[cell in self.goals]

        signs = [sign(cell) for cell in range(self.width * self.width)]
        rows = range(0, len(signs), self.width)
        return "\n".join("".join(signs[row : row + self.width]) for row in rows)


def generate_level(split: str, number: int, size: int, boxes: int) -> Level:
    """A level of a split: a room, then boxes pulled away from the goals (so that they can be pushed back).
    Its split follows from the hash of its text, the same for its rotations and reflections."""
    rng = random.Random(f"sokoban {GENERATOR}|{split}|{size}|{boxes}|{number}")
    while True:
        floor = _room(size, rng)
        if len(floor) < _needed_cells(boxes):
            continue
        cells = sorted(floor)
        goals = frozenset(rng.sample(cells, boxes))
        player = rng.choice([cell for cell in cells if cell not in goals])
        level = Level(size, floor, goals, _pulled(Level(size, floor, goals, (player, goals)), rng))
        if not level.start[1] & goals and split_of_key(_canonical(level), SPLITS) == split:
            return level


def _needed_cells(boxes: int) -> int:
    """The fewest floor cells that a level with this many boxes has."""
    return 4 * boxes + 4


def _room(size: int, rng: random.Random) -> frozenset[int]:
    """The connected floor of a square room with some walls in it."""
    inner = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    walls = set(rng.sample(inner, rng.randint(len(inner) // 10, len(inner) // 4)))
    free = frozenset(inner) - walls
    return _reachable(Level(size, free, frozenset(), (0, frozenset())), min(free), frozenset())


def _reachable(level: Level, start: int, boxes: frozenset[int]) -> frozenset[int]:
    seen, waiting = {start}, [start]
    while waiting:
        cell = waiting.pop()
        for by in level.moves.values():
            if cell + by in level.floor and cell + by not in seen and cell + by not in boxes:
                seen.add(cell + by)
                waiting.append(cell + by)
    return frozenset(seen)


def _pulled(level: Level, rng: random.Random) -> State:
    """A state that pulling boxes leads to: the pulls, reversed, are pushes that solve it."""
    player, boxes = level.start
    for _ in range(rng.randint(*_PULLS) * len(boxes)):
        near = _reachable(level, player, boxes)
        pulls = [
            (box, box + by, box + 2 * by)  # box, where the player stands, where it goes
            for box in sorted(boxes)
            for by in level.moves.values()
            if box + by in near and box + 2 * by in level.floor - boxes
        ]
        if not pulls:
            break
        box, stand, player = rng.choice(pulls)
        boxes = boxes - {box} | {stand}
    return rng.choice(sorted(_reachable(level, player, boxes))), boxes


def _canonical(level: Level) -> str:
    """The first, in sorted order, of the texts of a level's rotations and reflections."""
    rows = level.text(level.start).split("\n")
    texts = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        texts += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(texts)


def solve(level: Level, state: State) -> list[tuple[State, str]]:
    """The shortest way to get all boxes onto goals, as states and moves; empty if there is none.

    A* (Hart et al. 1968) over the cells of player and boxes. Each box needs at least as many pushes as it
    would alone in the room, which bounds what is left from below.
    """
    pushes = _pushes_alone(level)
    before: dict[State, tuple[State, str] | None] = {state: None}
    cost = {state: 0}
    waiting = [(0, 0, state)]
    while waiting:
        _, _, current = heappop(waiting)
        if current[1] == level.goals:
            path, step = [], before[current]
            while step is not None:
                path.append(step)
                step = before[step[0]]
            return path[::-1]
        taken = cost[current] + 1
        for move in level.moves:
            after = level.after(current, move)
            if after is None or taken >= cost.get(after, taken + 1):
                continue
            if not after[1] <= pushes.keys():
                continue  # a box that never gets to a goal again
            before[after], cost[after] = (current, move), taken
            left = sum(pushes[box] for box in after[1])
            # the number decides between equal estimates: states cannot be compared
            heappush(waiting, (taken + left, len(cost), after))
    return []


def _pushes_alone(level: Level) -> dict[int, int]:
    """The pushes that bring a single box to the nearest goal, by its cell; dead cells are left out."""
    found = dict.fromkeys(level.goals, 0)
    waiting = deque(sorted(level.goals))
    while waiting:
        cell = waiting.popleft()
        for by in level.moves.values():
            # pulled back from the cell, with the player one step further
            if cell + by not in found and {cell + by, cell + 2 * by} <= level.floor:
                found[cell + by] = found[cell] + 1
                waiting.append(cell + by)
    return found


@shared_sets(maxsize=64)
def sokoban_tasks(split: str, size: int, boxes: int, num_tasks: int | None) -> TaskSet:
    """The levels of a split, each made when it is asked for."""
    require_choice("split", split, SPLITS)
    require_in("size", size, SIZES)
    require_in("boxes", boxes, BOXES)
    require_count("num_tasks", num_tasks)
    inner = (size - 2) ** 2
    if inner - inner // 10 < _needed_cells(boxes):  # a tenth is walls
        raise ValueError(
            f"boxes={boxes} do not fit into a room of size={size}: choose a larger size."
        )
    count = TASKS[split] if num_tasks is None else num_tasks
    key = f"sokoban {GENERATOR}/{split}/{size}x{size}/{boxes}/{count}"

    def load(task_id: str) -> Task:
        level = generate_level(split, int(task_id.rpartition("/")[2]), size, boxes)
        return Task(task_id, INSTRUCTION, f"{boxes}_boxes", level)

    ids = [f"{split}/{size}x{size}/{boxes}/{number:05d}" for number in range(count)]
    return TaskSet(ids, load, hashlib.sha256(key.encode()).hexdigest(), split)


class SokobanEnv(TextEnv):
    """Push boxes onto goals: dynamics that a text model can know exactly, and moves that cannot be undone.

    ## Description
    Sokoban (Thinking Rabbit, 1982) in square rooms that are made by seed: a room, goals, and boxes pulled
    away from them, so every level can be solved. Nothing to download.

    ## Action Space
    ``up``, ``down``, ``left``, ``right``. ``info["admissible_actions"]`` lists those that move the player;
    anything else changes nothing and is invalid.

    ## Observation Space
    What the move did, and the room: ``#`` wall, ``@`` player, ``+`` player on a goal, ``$`` box, ``*`` box
    on a goal, ``.`` goal, ``-`` floor.

    ## Rewards
    1 when all boxes are on goals, else 0. ``info["score"]`` is the share of boxes on goals. Behind
    ``AgentInterface``: 10 on success, -0.1 for an invalid response.

    ## Starting State
    The level of the task, no box on a goal. ``seed`` or ``options`` choose the task.

    ## Episode End
    Terminated when all boxes are on goals; truncated after ``max_steps`` (60). A level that can no
    longer be solved goes on.

    ## Arguments
    ``split``: ``train``, ``valid`` or ``test``, disjoint by the hash of a level (its rotations and
    reflections included). ``size`` (5 to 10): rows and columns, outer walls included. ``boxes`` (1 to 3).
    ``num_tasks``: size of the split.
    """

    agent = AgentDefaults(template="board", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        split: str = "train",
        size: int = 7,
        boxes: int = 2,
        max_steps: int = 60,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(sokoban_tasks(split, size, boxes, num_tasks), max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = task.data.start
        return self._outcome("You stand in a room.")

    def _act(self, action: str) -> Outcome:
        level: Level = self.task.data
        after = level.after(self.state, action) if action in level.moves else None
        if after is None:
            return self._outcome("Nothing moves.", valid=False)
        pushed = after[1] != self.state[1]
        self.state = after
        return self._outcome(f"You push a box {action}." if pushed else f"You walk {action}.")

    def _outcome(self, event: str, valid: bool = True) -> Outcome:
        level: Level = self.task.data
        done = len(self.state[1] & level.goals)
        solved = done == len(level.goals)
        return Outcome(
            f"{event}\n{level.text(self.state)}",
            reward=float(solved),
            terminated=solved,
            success=solved,
            score=done / len(level.goals),
            action_is_valid=valid,
            admissible_actions=[m for m in level.moves if level.after(self.state, m) is not None],
        )

    def reference_solution(self) -> list[str]:
        """The shortest solution from here; empty if there no longer is one."""
        return [move for _, move in solve(self.task.data, self.state)]

    def expert(self) -> Callable[[], str]:
        """The solver, which plans again only if another action has led elsewhere."""
        plan: dict[State, str] = {}

        def act() -> str:
            if self.state not in plan:
                plan.update(solve(self.task.data, self.state))
            if self.state not in plan:
                raise StopIteration
            return plan[self.state]

        return act
