"""Rules: rooms and made-up verbs, whose effects can only be learned by acting.

Nothing in the text says what a verb does. The same rules hold in all tasks of a world, so what one task
shows about them is useful in every other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv
from paw_gym.generated import require_count, require_in, shared_sets
from paw_gym.internals.naming import require_choice

GENERATOR = 1
"""raised when the same arguments give other worlds"""
ROOMS = (
    *("attic", "barn", "cellar", "chapel", "court", "crypt", "den", "foyer", "gallery", "garden"),
    *("hall", "kiln", "larder", "library", "loft", "mill", "pantry", "porch", "stable", "tower"),
)
VERBS = ("blick", "dax", "fep", "wug")
LAMPS = ("amber", "blue", "green", "red", "violet", "white")
GOALS = 4
"""rooms that tasks ask for: those with the most rooms far away from them"""
DISTANCE = 6
"""fewest verbs between a task's start and its goal"""
_SHORTCUTS = 0.5
"""share of the rooms with a second verb that leads somewhere"""
SPLITS = {"train": (0, 2), "valid": (2, 3), "test": (3, 4)}
"""the quarters of a world's pairs of start and goal that a split has"""


@dataclass(frozen=True)
class World:
    """The rules: where each verb leads from each room; a verb that is missing leads nowhere."""

    ways: Mapping[str, Mapping[str, str]]

    def steps_to(self, goal: str) -> dict[str, int]:
        """Fewest verbs from each room to the goal."""
        steps, ring = {goal: 0}, [goal]
        while ring:
            ring = [r for r in ROOMS if r not in steps and set(self.ways[r].values()) & {*ring}]
            steps |= dict.fromkeys(ring, max(steps.values()) + 1)
        return steps

    def path(self, room: str, goal: str) -> list[str]:
        """The verbs of a shortest path."""
        steps, verbs = self.steps_to(goal), []
        while room != goal:
            verb, room = min(self.ways[room].items(), key=lambda way: steps[way[1]])
            verbs.append(verb)
        return verbs

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(start, goal) of all tasks, far apart, in an arbitrary order."""
        far = {
            goal: [room for room, n in self.steps_to(goal).items() if n >= DISTANCE]
            for goal in ROOMS
        }
        goals = sorted(ROOMS, key=lambda goal: -len(far[goal]))[:GOALS]
        pairs = [(start, goal) for goal in goals for start in far[goal]]
        return sorted(pairs, key=lambda pair: hashlib.sha256(" ".join(pair).encode()).digest())


@lru_cache(maxsize=1024)
def make_world(number: int) -> World:
    """A world by its number: a loop through all rooms, and shortcuts from half of them."""
    rng = random.Random(f"rules-{GENERATOR}/{number}")
    order = rng.sample(ROOMS, len(ROOMS))
    ways = {room: {rng.choice(VERBS): order[i - 1]} for i, room in enumerate(order)}
    for room in ROOMS:
        if rng.random() < _SHORTCUTS:
            free = [verb for verb in VERBS if verb not in ways[room]]
            ways[room][rng.choice(free)] = rng.choice([r for r in ROOMS if r != room])
    return World(ways)


@shared_sets(maxsize=16)
def rules_tasks(split: str, world: int, worlds: int, num_tasks: int | None) -> TaskSet:
    """The tasks of a split; ``data`` of a task is its world's number, start and goal."""
    require_choice("split", split, SPLITS)
    require_in("world", world, range(10**6))
    require_in("worlds", worlds, range(1, 10_001))
    require_count("num_tasks", num_tasks)
    first, last = SPLITS[split]
    tasks = []
    for number in range(world, world + worlds):
        pairs = make_world(number).pairs
        for start, goal in pairs[len(pairs) * first // 4 : len(pairs) * last // 4]:
            name = f"rules-{GENERATOR}/{number}/{start}-{goal}"
            tasks.append(Task(name, f"Get to the {goal}.", goal, (number, start, goal)))
    return TaskSet.from_tasks(tasks[:num_tasks], split)


class RulesEnv(TextEnv):
    """Rules: hidden dynamics that can be learned, and a reward that comes late.

    ## Description
    Twenty rooms and four made-up verbs. In a room, one or two of the verbs lead to another room, always the
    same one; the others lead nowhere. No text says which. Nothing to download.

    ## Action Space
    ``blick``, ``dax``, ``fep``, ``wug``; all four are always possible, and none is ever refused.

    ## Observation Space
    The room, and the colour of a lamp, which is random and means nothing: tokens that nobody can predict.

    ## Rewards
    1 in the goal room, else 0. Behind ``AgentInterface``: 10 on success, -0.1 for a response without a verb.

    ## Starting State
    ``seed`` or ``options`` choose the task: a start and a goal, at least six verbs apart. The lamps depend on
    the seed.

    ## Episode End
    Terminated in the goal room; truncated after ``max_steps`` (18).

    ## Arguments
    ``split``: ``train`` has half of a world's pairs of start and goal, ``valid`` and ``test`` a quarter each.
    ``world``: the number of the rules. ``worlds``: how many worlds the tasks come from, from ``world`` on;
    with more than one, rules hold in only some of the tasks. ``num_tasks``: at most that many.
    """

    agent = AgentDefaults(template="board", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")
    forkable = True

    def __init__(
        self,
        split: str = "train",
        world: int = 0,
        worlds: int = 1,
        max_steps: int = 18,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(rules_tasks(split, world, worlds, num_tasks), max_steps, render_mode)

    @property
    def world(self) -> World:
        """The rules of the present task."""
        return make_world(self.task.data[0])

    def _start(self, task: Task) -> Outcome:
        self.state: str = task.data[1]
        return self._outcome("are")

    def _act(self, action: str) -> Outcome:
        if action not in VERBS:
            return self._outcome("stay", valid=False)
        before = self.state
        self.state = self.world.ways[before].get(action, before)
        return self._outcome("stay" if self.state == before else "are")

    def _outcome(self, word: str, valid: bool = True) -> Outcome:
        lamp = LAMPS[int(self.np_random.integers(len(LAMPS)))]
        arrived = self.state == self.task.data[2]
        return Outcome(
            f"You {word} in the {self.state}. The lamp is {lamp}.",
            reward=float(arrived),
            terminated=arrived,
            success=arrived,
            action_is_valid=valid,
            admissible_actions=list(VERBS),
        )

    def reference_solution(self) -> list[str]:
        """The verbs of a shortest path."""
        return self.world.path(self.state, self.task.data[2])

    def expert(self) -> Callable[[], str]:
        """Takes a shortest path, wherever it stands: it knows the rules."""
        return lambda: self.reference_solution()[0]
