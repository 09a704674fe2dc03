"""TextWorldExpress: seven kinds of text games in a fast engine on the Java virtual machine."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from importlib import metadata
from threading import Lock
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet
from paw_gym.envs import jvm
from paw_gym.generated import require_count, shared_sets
from paw_gym.internals.naming import require_choice
from paw_gym.internals.printable import encodable
from paw_gym.replayed import ReplayedEnv

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "simonsays", "peckingorder")
"""all but ``sorting``: two of its games with one seed disturb each other in one virtual machine"""
_LONGEST = 200
"""most characters of an action; no game has longer commands"""
_reading = Lock()
"""held by the thread that reads tasks: the engine that does so holds one game"""


def new_engine() -> Any:
    """An engine that holds one game; it shares the process's virtual machine with the others."""
    classes = jvm.gateway(
        "textworld_express", "textworld-express.jar", "paw_gym/TextWorldExpress-v0", "jvm"
    )
    return classes.textworldexpress.runtime.PythonInterface()


@lru_cache(maxsize=1)
def _reader(process: int) -> Any:
    """The engine that reads tasks in this process: a forked one must not use its parent's connection."""
    return new_engine()


@shared_sets(maxsize=16)
def express_tasks(game: str, split: str, params: str, num_tasks: int | None) -> TaskSet:
    """The games of a split; ``data`` of a task is its seed among the engine's own for that split."""
    require_choice("game", game, GAMES)
    require_choice("split", split, jvm.FOLDS)
    require_count("num_tasks", num_tasks)
    with _reading:
        engine = _reader(os.getpid())
        _load(engine, game, str(params))
        seeds = list(getattr(engine, f"getSeeds{jvm.FOLDS[split].title()}")())[:num_tasks]
        # text that it cannot read as parameters is loaded silently, and then there is no game
        first = json.loads(engine.generateNewGameJSON(seeds[0], jvm.FOLDS[split], False))
    if first["observation"].startswith("ERROR:") or not isinstance(params, str):
        raise ValueError(
            "params is a str of names with whole numbers, such as 'numLocations=3, numIngredients=2', or '', "
            f"got {params!r}."
        )
    family = f"{game}{'/' + params.replace(' ', '') if params else ''}/{split}"

    def load(task_id: str) -> Task:
        seed = int(task_id.rpartition("/")[2])
        with _reading:
            engine = _reader(os.getpid())
            _load(engine, game, params)
            engine.generateNewGameJSON(seed, jvm.FOLDS[split], False)
            return Task(task_id, str(engine.getTaskDescription()), game, seed)

    ids = [f"{family}/{seed}" for seed in seeds]
    key = "\n".join([metadata.version("textworld_express"), *ids])
    return TaskSet(ids, load, hashlib.sha256(key.encode()).hexdigest(), split)


def _load(engine: Any, game: str, params: str) -> None:
    refused = engine.load(game, params)
    if refused:
        raise ValueError(f"params of {game}: {refused}")


@lru_cache(maxsize=256)
def gold_path(game: str, split: str, params: str, seed: int) -> tuple[str, ...]:
    """The engine's solution of a game; kept, as it may find another one the next time."""
    engine = new_engine()
    _load(engine, game, params)
    now = json.loads(engine.generateNewGameJSON(seed, jvm.FOLDS[split], True))
    plan: list[str] = []
    for action in engine.getGoldActionSequence():
        # some paths open what is open, and some go on after the end
        if action in now["validActions"] and not now["tasksuccess"]:
            plan.append(action)
            now = json.loads(engine.stepJSON(action))
    return tuple(plan)


class TextWorldExpressEnv(ReplayedEnv):
    """Cooking, tidying up, map reading, arithmetic and more, in a text engine of hundreds of steps a second.

    ## Description
    The games of TextWorldExpress (Jansen and Côté 2023) in the original engine: ``cookingworld``, ``twc``
    (common sense), ``coin``, ``mapreader``, ``arithmetic``, ``simonsays``, ``peckingorder``.
    Needs the extra ``jvm``, which brings a Java; nothing else to download.

    ## Action Space
    ``info["admissible_actions"]`` lists every command that the game accepts now; anything else is invalid.

    ## Observation Space
    The text of the game.

    ## Rewards
    The change in the game's score, which is 1 on success. ``info["score"]`` is that score. Behind
    ``AgentInterface``: 10 on success, -0.1 for an invalid response.

    ## Starting State
    ``seed`` or ``options`` choose the task, which is a game.

    ## Episode End
    Terminated when the game is won or lost; truncated after ``max_steps`` (100).

    ## Arguments
    ``game``: one of the seven. ``split``: ``train``, ``valid`` or ``test``: the engine's own. ``params``: the
    game's parameters in the engine's form, such as ``"numLocations=3, numIngredients=2"``. ``num_tasks``: at
    most that many of the 1,000 games of a split.
    """

    agent = AgentDefaults(template="generic", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        game: str = "cookingworld",
        split: str = "train",
        params: str = "",
        max_steps: int = 100,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(express_tasks(game, split, params, num_tasks), max_steps, render_mode)
        self.game, self.split, self.params = game, split, params
        self._engine: Any = None
        self._score = 0.0
        self._valid: list[str] = []

    def _open(self, task: Task, seed: int) -> Outcome:
        if self._engine is None:
            self._engine = new_engine()
            _load(self._engine, self.game, self.params)
        self._score = 0.0
        answer = self._engine.generateNewGameJSON(task.data, jvm.FOLDS[self.split], False)
        return self._outcome(answer, valid=True)

    def _apply(self, action: str) -> Outcome:
        valid = action in self._valid
        # what the engine does with any text; a very long one costs it minutes
        return self._outcome(self._engine.stepJSON(encodable(action[:_LONGEST])), valid)

    def _outcome(self, answer: str, valid: bool) -> Outcome:
        now = json.loads(answer)
        score, self._score = self._score, float(now["score"])
        over = bool(now["tasksuccess"] or now["taskfailure"])
        self._valid = [] if over else sorted(set(now["validActions"]))
        return Outcome(
            now["observation"].strip(),
            reward=self._score - score,
            terminated=over,
            success=bool(now["tasksuccess"]),
            score=min(1.0, max(0.0, self._score)),
            action_is_valid=valid,
            admissible_actions=self._valid,
        )

    def reference_solution(self) -> list[str]:
        """The rest of the game's gold path; after other actions, an end of it that still wins."""
        plan = gold_path(self.game, self.split, self.params, self.task.data)
        return self.remaining_of(list(plan))
