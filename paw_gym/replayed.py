"""Environments over engines without snapshots: exact save and restore by taking the actions again."""

from __future__ import annotations

import copy
from abc import abstractmethod

from paw_gym.core import Outcome, Task, TextEnv


class ReplayedEnv(TextEnv):
    """A text environment whose state is the seed of its episode and the actions taken so far.

    A restored state costs nothing until the next action; only then is the engine brought there, from where
    it stands if that is on the way. So the engine must depend on the task, the seed and the actions alone.
    """

    seeds = 2**31
    """number of seeds that an episode's is sampled from"""
    _opened: tuple[str, int] | None = None
    """id of the task and seed of the episode that the engine is in"""
    _applied: list[str]
    """the actions that the engine was given in that episode"""

    @abstractmethod
    def _open(self, task: Task, seed: int) -> Outcome:
        """Starts an episode in the engine."""

    @abstractmethod
    def _apply(self, action: str) -> Outcome:
        """Takes an action in the engine. Must not raise on any string."""

    def _start(self, task: Task) -> Outcome:
        self.state = {"seed": int(self.np_random.integers(self.seeds)), "actions": []}
        return self._reopen()

    def _reopen(self) -> Outcome:
        seed = self.state["seed"]
        self._opened = None  # an engine that fails to start is in no episode
        outcome = self._open(self.task, seed)
        self._opened, self._applied = (self.task.id, seed), []
        return outcome

    def _act(self, action: str) -> Outcome:
        self.catch_up()
        self.state["actions"].append(action)
        return self._take(action)

    def _take(self, action: str) -> Outcome:
        self._applied.append(action)
        return self._apply(action)

    def catch_up(self) -> None:
        """Brings the engine to the present state: for whatever reads the engine after a restore."""
        here = self._opened == (self.task.id, self.state["seed"])
        actions = self.state["actions"]
        if not here or self._applied != actions[: len(self._applied)]:
            self._reopen()
        for action in actions[len(self._applied) :]:
            self._take(action)

    def remaining_of(self, plan: list[str]) -> list[str]:
        """The actions of a plan from the start of the task that are still to be taken.

        After other actions, an end of the plan that succeeds from here, tried in a copy: what is left if the
        others did no harm, else the shortest one; empty if none succeeds, or the episode is over.
        """
        if self._over:
            return []
        taken, left = self.state["actions"], list(plan)
        for action in taken:
            if left and action == left[0]:
                del left[0]
        if plan[: len(taken)] == taken:
            return left
        endings = (plan[start:] for start in range(len(plan) - 1, -1, -1))
        return next((ending for ending in (left, *endings) if self._succeeds(ending)), [])

    def _succeeds(self, actions: list[str]) -> bool:
        twin = copy.deepcopy(self)
        try:
            for action in actions:
                _, _, terminated, truncated, info = twin.step(action)
                if terminated or truncated:
                    return bool(info["success"])
            return False
        finally:
            twin.close()
