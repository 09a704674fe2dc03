"""BabyAI: instructions in a grid of rooms, the agent's view as text, and minigrid's bot as the expert."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet
from paw_gym.generated import generated_tasks, sample_of_split, shared_sets
from paw_gym.internals.constructors import need
from paw_gym.internals.naming import require_choice
from paw_gym.replayed import ReplayedEnv

GENERATOR = 1
"""raised when other levels come from the same arguments"""
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""in minigrid's order"""
# levels that minigrid's bot cannot solve (as its documentation says), and variants for debugging
_NO_EXPERT = ("Carrying", "KeyInBox", "Debug")
_SEARCHES = 100
"""path searches after which the bot's plan counts as endless; it needs a few for an action"""
_LONGEST = 2_000
"""actions that the bot may take for a mission"""
_ATTEMPTS = 50
"""episodes that are tried until the bot solves one"""


@lru_cache(maxsize=1)
def levels() -> dict[str, str]:
    """By name (``GoToLocal``), the id in Gymnasium of each level that has an expert."""
    import gymnasium as gym

    need("minigrid", "babyai", "paw_gym/BabyAI-v0")  # registers them
    ids = [i for i in gym.registry if i.startswith("BabyAI-")]
    names = {i.partition("-")[2].rpartition("-v")[0]: i for i in ids}
    return {name: i for name, i in names.items() if not any(sign in name for sign in _NO_EXPERT)}


def open_level(level: str, seed: int, max_steps: int) -> Any:
    """A level of minigrid at its start; ``max_steps`` goes into its reward."""
    import gymnasium as gym

    engine: Any = gym.make(levels()[level], disable_env_checker=True).unwrapped
    with contextlib.redirect_stdout(io.StringIO()):  # it prints which candidates it rejects
        engine.reset(seed=seed)
    engine.max_steps = max_steps
    return engine


def view(engine: Any) -> str:
    """The agent's view: what it carries, how far it could walk, and the objects by their distance."""
    grid, visible = engine.gen_obs_grid()
    column, row = grid.width // 2, grid.height - 1
    carried = engine.carrying
    lines = [f"You carry a {carried.color} {carried.type}." if carried else "You carry nothing."]
    for name, dx, dy in (("Ahead", 0, -1), ("To the left", -1, 0), ("To the right", 1, 0)):
        lines.append(f"{name}: {_free(grid, visible, column, row, dx, dy)}.")
    seen = [
        (row - y, x - column, grid.get(x, y))
        for y in range(row, -1, -1)
        for x in range(grid.width)
        if visible[x, y] and (x, y) != (column, row)
    ]
    objects = [(a, s, o) for a, s, o in seen if o is not None and o.type != "wall"]
    lines += [f"- {_named(thing)}: {_place(ahead, side)}" for ahead, side, thing in objects]
    return "\n".join(lines if objects else [*lines, "No object is in view."])


def _free(grid: Any, visible: Any, x: int, y: int, dx: int, dy: int) -> str:
    """The free cells in a direction, and what ends them."""
    count = 0
    while True:
        x, y = x + dx, y + dy
        cells = f"{count} free cell" + ("" if count == 1 else "s")
        if not (0 <= x < grid.width and 0 <= y < grid.height) or not visible[x, y]:
            return f"{cells}, beyond that unseen"
        thing = grid.get(x, y)
        if thing is not None and not thing.can_overlap():
            return f"{cells}, then a {_named(thing)}"
        count += 1


def _named(thing: Any) -> str:
    if thing.type == "wall":
        return "wall"
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{state} {thing.color} door"


def _place(ahead: int, side: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    parts += [f"{abs(side)} to the {'right' if side > 0 else 'left'}"] if side else []
    return ", ".join(parts)


class Bot:
    """minigrid's bot in an episode of its own, which follows the actions of another episode."""

    def __init__(self, level: str, seed: int) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self.seed, self.engine = seed, open_level(level, seed, 10**6)
        self.followed: list[str] = []
        self.over = self.won = False
        bot: Any = BabyAIBot(self.engine)
        search = bot._breadth_first_search

        def limited(*args: Any, **kwargs: Any) -> Any:
            if bot.bfs_counter >= _SEARCHES:
                raise AssertionError("it adds subgoals without end")
            return search(*args, **kwargs)

        self._bot, bot._breadth_first_search = bot, limited
        self._suggested = self._replan(None)

    def _replan(self, taken: int | None) -> int | None:
        from minigrid.utils.baby_ai_bot import DisappearedBoxError

        self._bot.bfs_counter = 0
        try:
            return int(self._bot.replan(taken))
        except (AssertionError, DisappearedBoxError):
            return None  # the bot's own ways of giving a mission up

    def follow(self, action: str) -> None:
        """Takes an action in the bot's own episode, and lets it plan again."""
        self.followed.append(action)
        if action in ACTIONS and not self.over:
            number = ACTIONS.index(action)
            _, reward, self.over, _, _ = self.engine.step(number)
            self.won = self.over and reward > 0
            if not self.over and self._suggested is not None:
                # None: it did what it suggested
                self._suggested = self._replan(None if number == self._suggested else number)

    @property
    def suggestion(self) -> str | None:
        """The action that it would take; ``None`` if it knows none."""
        known = self._suggested is not None and self._suggested < len(ACTIONS) and not self.over
        return ACTIONS[self._suggested] if known else None  # type: ignore[index]

    def finish(self, limit: int) -> list[str]:
        """Its actions up to success; empty if it gives up, fails or needs more than ``limit``."""
        actions: list[str] = []
        while (action := self.suggestion) is not None and len(actions) < limit:
            actions.append(action)
            self.follow(action)
        return actions if self.won else []


@shared_sets(maxsize=16)
def babyai_tasks(level: str, split: str, count: int | None) -> TaskSet:
    """The episodes of a level in a split; ``data`` of a task is its seed."""
    require_choice("level", level, levels())
    family = f"babyai{GENERATOR}-{metadata.version('minigrid')}/{level}"

    def content(seed: int) -> str:
        engine = open_level(level, seed, 1)
        start = (*map(int, engine.agent_pos), int(engine.agent_dir), engine.mission)
        return hashlib.sha256(engine.grid.encode().tobytes() + repr(start).encode()).hexdigest()

    def make(task_id: str, number: int) -> Task:
        for attempt in range(_ATTEMPTS):
            name = f"{family}/{number}/{attempt}"
            seed = sample_of_split(name, split, lambda rng: rng.getrandbits(31), content)
            if Bot(level, seed).finish(_LONGEST):
                mission = open_level(level, seed, 1).mission
                return Task(task_id, f"{mission}.".capitalize(), level, seed)
        raise ValueError(f"minigrid's bot solves none of {_ATTEMPTS} episodes of {level}.")

    return generated_tasks(family, split, make, count)


class BabyAIEnv(ReplayedEnv):
    """Instructions to carry out in a grid of rooms, of which the agent sees seven by seven cells.

    ## Description
    BabyAI (Chevalier-Boisvert et al. 2019) in minigrid's levels: go to, pick up, put next to, open, unlock,
    and sequences of these. Needs the extra ``babyai``; nothing to download.

    ## Action Space
    ``turn left``, ``turn right``, ``go forward``, ``pick up``, ``drop``, ``toggle`` (opens and closes doors
    and boxes). ``info["admissible_actions"]`` lists those that change something. Any other of the six takes a
    turn and is invalid; any other text changes nothing and is invalid.

    ## Observation Space
    What the agent carries, how many cells are free ahead and at its sides, and every object in its view by
    its distance ahead and to the side.

    ## Rewards
    minigrid's: on success 1 - 0.9 n / ``max_steps`` after n actions, else 0. Behind ``AgentInterface``: 10 on
    success, -0.1 for an invalid response.

    ## Starting State
    ``seed`` or ``options`` choose the task, which is a grid with its instruction.

    ## Episode End
    Terminated when the instruction is carried out, or can no longer be; truncated after ``max_steps`` (64).

    ## Arguments
    ``level``: its name in minigrid without ``BabyAI-`` and the version, such as ``GoToLocal`` or
    ``BossLevel``. ``split``: ``train``, ``valid`` or ``test``, disjoint by the hash of grid and instruction.
    ``max_steps``: large levels need several hundred. ``num_tasks``: size of the split.
    """

    agent = AgentDefaults(template="generic", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        level: str = "GoToLocal",
        split: str = "train",
        max_steps: int = 64,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(babyai_tasks(level, split, num_tasks), max_steps, render_mode)
        self.level = level
        self._engine: Any = None

    def _open(self, task: Task, seed: int) -> Outcome:
        self._engine = open_level(self.level, task.data, self.max_steps)
        return self._outcome(0.0, over=False, valid=True)

    def _apply(self, action: str) -> Outcome:
        valid = action in self._useful()
        if action not in ACTIONS:
            return self._outcome(0.0, over=False, valid=False)
        _, reward, over, _, _ = self._engine.step(ACTIONS.index(action))
        return self._outcome(float(reward), over, valid)

    def _useful(self) -> list[str]:
        front = self._engine.grid.get(*self._engine.front_pos)
        carried = self._engine.carrying
        key = None if carried is None else (carried.type, carried.color)
        opens = front is not None and (
            front.type == "box"
            or (front.type == "door" and (not front.is_locked or key == ("key", front.color)))
        )
        changes = {
            "go forward": front is None or front.can_overlap(),
            "pick up": front is not None and front.can_pickup() and carried is None,
            "drop": front is None and carried is not None,
            "toggle": opens,
        }
        return [action for action in ACTIONS if changes.get(action, True)]

    def _outcome(self, reward: float, over: bool, valid: bool) -> Outcome:
        return Outcome(
            view(self._engine),
            reward=reward,
            terminated=over,
            success=over and reward > 0,
            action_is_valid=valid,
            admissible_actions=[] if over else self._useful(),
        )

    def reference_solution(self) -> list[str]:
        """The bot's actions from here; empty if it has given up."""
        return self._following(None).finish(_LONGEST)

    def _following(self, bot: Bot | None) -> Bot:
        """A bot at this point of the episode: the given one if it is on the way there, or a new one."""
        task, taken = self.task, self.state["actions"]
        if bot is None or (bot.seed, bot.followed) != (task.data, taken[: len(bot.followed)]):
            bot = Bot(self.level, task.data)
        for action in taken[len(bot.followed) :]:
            bot.follow(action)
        return bot

    def expert(self) -> Callable[[], str]:
        """The bot, which sees no more than the agent and goes on planning after any action."""
        bot: Bot | None = None

        def act() -> str:
            nonlocal bot
            bot = self._following(bot)
            if bot.suggestion is None:
                raise StopIteration
            return bot.suggestion

        return act
