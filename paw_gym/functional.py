"""The smallest way to write an environment: a generator function over a list of tasks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

from paw_gym.core import Outcome, Task, TaskSet, TextEnv

Play = Callable[[Task, np.random.Generator], Generator[Outcome, str, None]]


class GeneratorEnv(TextEnv):
    """A text environment whose episodes are generators: they yield outcomes and are sent actions.

    A generator cannot be copied, so a state is the actions so far and the generator's seed, and
    restoring plays them again.

    Args:
        play: ``play(task, rng)``, the generator function.
        tasks: the tasks.
        max_steps: step budget.
        solve: ``solve(task) -> list of actions`` from the start of a task, for the contract suite.
    """

    def __init__(
        self,
        play: Play,
        tasks: Iterable[Task],
        max_steps: int = 50,
        solve: Callable[[Task], list[str]] | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)
        self._play = play
        self._solve = solve
        self._episode: Generator[Outcome, str, None] | None = None

    def _start(self, task: Task) -> Outcome:
        seed = int(self.np_random.integers(2**63))
        self.state = {"seed": seed, "actions": []}
        return self._open(task, seed)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._episode = self._play(task, np.random.default_rng(seed))
        return next(self._episode)

    def _act(self, action: str) -> Outcome:
        if self._episode is None:
            raise RuntimeError("No episode was started: call reset() first.")
        self.state["actions"].append(action)
        try:
            return self._episode.send(action)
        except StopIteration:
            raise RuntimeError(
                f"{getattr(self._play, '__name__', self._play)} returned without a last Outcome: "
                "yield one with terminated=True to end the episode."
            ) from None

    def _set_state(self, state: Any) -> None:
        self.state = copy.deepcopy(state)
        self._open(self.task, state["seed"])
        if self._episode is not None:
            for action in state["actions"]:
                self._episode.send(action)

    def reference_solution(self) -> list[str]:
        if self._solve is None:
            return super().reference_solution()
        return self._solve(self.task)[len(self.state["actions"]) :]


class GeneratorEnvFactory:
    """Makes ``GeneratorEnv`` objects for ``gymnasium.make``; pickles by reference to the function."""

    metadata = GeneratorEnv.metadata

    def __init__(
        self, id: str, play: Callable[..., Any], tasks: Iterable[Any] | None, max_steps: int
    ) -> None:
        if not inspect.isgeneratorfunction(play):
            raise ValueError(
                f"{id}: {play!r} is neither a class nor a generator function. "
                "Register a TextEnv subclass, or a function that yields Outcomes."
            )
        if tasks is None:
            raise ValueError(f"{id}: a generator function needs tasks=[Task(...), ...].")
        self.play = play
        self.tasks = list(tasks)
        self.max_steps = max_steps

    def __call__(
        self, max_steps: int | None = None, render_mode: str | None = None
    ) -> GeneratorEnv:
        return GeneratorEnv(
            self.play,
            self.tasks,
            self.max_steps if max_steps is None else max_steps,
            getattr(self.play, "solve", None),
            render_mode,
        )
