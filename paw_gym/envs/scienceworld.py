"""ScienceWorld: thirty kinds of elementary-science experiments in a house, on the Java virtual machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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

SIMPLIFICATIONS = (
    *("easy", "teleportAction", "openDoors", "openContainers"),
    *("noElectricalAction", "selfWateringFlowerPots"),
)
"""names for ``simplifications``; ``easy``: those of them that the engine thinks fit for a task"""
_REFUSALS = ("No known action matches", "Unknown action.", "ERROR:")
"""how the engine's answer to a text that is not an action begins"""
_ALWAYS = re.compile(r"\d+$|teleport ")
"""actions that need nothing within reach: the answer to a question, and a simplification's action"""
_LONGEST = 200
"""most characters of an action; no task has longer commands"""
_ONE_ORDER = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""gives every object the same identity hash: else a room's contents are listed in a new order each time"""
_working, _reading = Lock(), Lock()


class Engine:
    """One game of the engine; it shares the process's virtual machine with the others.

    The engine has one random generator, one counter of objects and one list of simplifications for the whole
    machine. Here each game has its own, which are put in place while it is at work, so that a game runs the
    same whatever the others do.
    """

    def __init__(self) -> None:
        world, jar = "paw_gym/ScienceWorld-v0", "scienceworld.jar"
        self._java = jvm.gateway("scienceworld", jar, world, "jvm", *_ONE_ORDER)
        of = self._java.java.lang.Class.forName
        self._shared = of("scala.util.Random$").getField("MODULE$").get(None)
        self._generator = of("scala.util.Random").getDeclaredField("self")
        self._generator.setAccessible(True)
        simplifier = of("main.scala.scienceworld.runtime.SimplifierProcessor$")
        self._simplifier = simplifier.getField("MODULE$").get(None)
        self._own, self._objects, self._simplified = self._java.java.util.Random(0), 0, ""
        with self._at_work(self._own):
            self.game = self._java.scienceworld.runtime.pythonapi.PythonInterface()

    @contextmanager
    def _at_work(self, generator: Any) -> Iterator[None]:
        counter = self._java.util.UniqueIdentifier
        with _working:
            self._generator.set(self._shared, generator)
            getattr(counter, "count_$eq")(self._objects)
            self._simplifier.parseSimplificationStr(self._simplified)
            yield
            self._objects = counter.count()

    def load(self, name: str, variation: int, simplifications: str, solve: bool = False) -> str:
        """Starts a variation of a task, and returns what the agent sees first."""
        with self._at_work(self._own):
            self.game.load(name, variation, simplifications, solve)
            getattr(self.game, "taskMaker_$eq")(None)  # nine tenths of a game's memory
            self._simplified = str(self.game.agentInterface().get().simplificationStr())
            return str(self.game.step("look around"))

    def step(self, action: str) -> tuple[str, int, bool]:
        """Takes an action; returns what the agent sees, its score (-100 to 100), and whether it is over."""
        with self._at_work(self._own):
            observation = str(self.game.step(action))
        points = round(100 * self.game.getScore())
        return observation.strip(), points, points < 0 or bool(self.game.getCompleted())

    def valid_actions(self) -> list[str]:
        """The actions that the engine accepts now, with objects filled in: hundreds."""
        with self._at_work(self._java.java.util.Random(0)):
            # as one text: a list would cost a round trip for each of its thousands of strings
            listed = json.loads(self.game.getValidActionObjectCombinationsJSON())["validActions"]
            within_reach = set(map(int, json.loads(self.game.getPossibleObjectReferentLUTJSON())))
        return [
            action["action"]
            for action in listed
            # the engine also lists what is in closed containers, and then does not understand it
            if within_reach.issuperset(action["obj_ids"]) or _ALWAYS.match(action["action"])
        ]

    def variations(self) -> dict[str, dict[str, list[int]]]:
        """The numbers of the variations, by task and split; for an engine that has loaded nothing yet."""
        found: dict[str, dict[str, list[int]]] = {}
        for name in map(str, self.game.getTaskNames()):
            getattr(self.game, "taskStr_$eq")(name)
            found[name] = {}
            for split, fold in jvm.FOLDS.items():
                numbers = getattr(self.game, f"getVariations{fold.title()}")()
                found[name][split] = json.loads(str(numbers.toString()))
        return found


@lru_cache(maxsize=1)
def _reader(process: int) -> tuple[Engine, dict[str, dict[str, list[int]]]]:
    """The engine that reads tasks in this process, which a fork must not use, and all variations."""
    engine = Engine()
    return engine, engine.variations()


@lru_cache(maxsize=1024)
def _instruction(name: str, variation: int) -> str:
    with _reading:  # another thread would load another task before the description is asked for
        reader, _ = _reader(os.getpid())
        reader.load(name, variation, "")
        return str(reader.game.getTaskDescription())


@shared_sets(maxsize=16)
def science_tasks(split: str, task: str | None, variations: int | None) -> TaskSet:
    """The variations of a split; ``data`` of a task is its number among the engine's own."""
    require_count("variations", variations)
    _, numbers = _reader(os.getpid())
    require_choice("split", split, jvm.FOLDS)
    if task is not None:
        require_choice("task", task, numbers)
    names = list(numbers) if task is None else [task]
    ids = [f"{name}/{number}" for name in names for number in numbers[name][split][:variations]]

    def load(task_id: str) -> Task:
        name, _, number = task_id.rpartition("/")
        return Task(task_id, _instruction(name, int(number)), name, int(number))

    key = "\n".join([metadata.version("scienceworld"), split, *ids])
    return TaskSet(ids, load, hashlib.sha256(key.encode()).hexdigest(), split)


@lru_cache(maxsize=256)
def gold_path(name: str, variation: int, simplifications: str) -> tuple[str, ...]:
    """The engine's solution of a variation, up to success and without what has no effect."""
    engine = Engine()
    plan: list[str] = []
    over = False
    engine.load(name, variation, simplifications, solve=True)
    for action in map(str, engine.game.getGoldActionSequence()):
        if not over:
            observation, _, over = engine.step(action)
            plan += [] if observation.startswith(_REFUSALS) else [action]
    return tuple(plan)


class ScienceWorldEnv(ReplayedEnv):
    """Boiling, growing, measuring, wiring: experiments of elementary science in a house of ten places.

    ## Description
    The thirty tasks of ScienceWorld (Wang et al. 2022) in the original engine, in 7,207 variations.
    Needs the extra ``jvm``, which brings a Java; nothing else to download.

    ## Action Space
    A verb and objects in view, such as ``move metal pot to sink``. ``list_actions()`` lists what would be
    accepted now (hundreds); ``info["admissible_actions"]`` is ``None``. What the engine does not understand
    is invalid.

    ## Observation Space
    The engine's answer.

    ## Rewards
    The change in the engine's score, divided by 100, from -1 for a spoilt task to 1 in all on success.
    ``info["score"]`` is that score, at least 0.

    ## Starting State
    ``seed`` or ``options`` choose the task, which is a variation.

    ## Episode End
    Terminated when the task is done or spoilt; truncated after ``max_steps`` (100).

    ## Arguments
    ``split``: ``train``, ``valid`` or ``test``: the engine's own. ``task``: one of the thirty; ``None``: all.
    ``variations``: at most that many of each task. ``simplifications``: the engine's own, such as ``easy``.
    """

    agent = AgentDefaults(template="scienceworld", history_length=8)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        split: str = "train",
        task: str | None = None,
        variations: int | None = None,
        simplifications: str = "",
        max_steps: int = 100,
        render_mode: str | None = None,
    ) -> None:
        for name in str(simplifications).split(",") if simplifications != "" else ():
            require_choice("simplification", name, SIMPLIFICATIONS)
        super().__init__(science_tasks(split, task, variations), max_steps, render_mode)
        self.simplifications = simplifications
        self._engine: Engine | None = None
        self._points = 0

    def _open(self, task: Task, seed: int) -> Outcome:
        self._engine, self._points = self._engine or Engine(), 0
        return Outcome(self._engine.load(task.type, task.data, self.simplifications))

    def _apply(self, action: str) -> Outcome:
        assert self._engine is not None
        before = self._points
        observation, self._points, over = self._engine.step(encodable(action[:_LONGEST]))
        return Outcome(
            observation,
            reward=(self._points - before) / 100,
            terminated=over,
            success=over and self._points == 100,
            score=max(0, self._points) / 100,
            action_is_valid=not observation.startswith(_REFUSALS),
        )

    def list_actions(self) -> list[str]:
        """The actions that the engine would accept now: asking takes longer than a step."""
        self.catch_up()
        assert self._engine is not None
        return [] if self._last.terminated else sorted(set(self._engine.valid_actions()))

    def reference_solution(self) -> list[str]:
        """The rest of the engine's gold path; after other actions, an end of it that still succeeds."""
        plan = gold_path(self.task.type, self.task.data, self.simplifications)
        return self.remaining_of(list(plan))
