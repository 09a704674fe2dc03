"""One small environment that keeps the contract, or breaks it in the way a test asks for."""

from __future__ import annotations

import os
import random
import secrets
import threading
import warnings
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from paw_gym import AgentDefaults, Outcome, Task, TaskSet, TextEnv


def box_tasks() -> TaskSet:
    text = "Find the ball in one of {} boxes."
    return TaskSet.from_tasks(
        Task(f"boxes/{n}", text.format(n), "few" if n < 6 else "many", {"boxes": n})
        for n in range(2, 14)
    )


class BoxEnv(TextEnv):
    """Find the ball: it is in one of some boxes. A ``defect`` breaks the contract."""

    agent: AgentDefaults = AgentDefaults(template="generic", success_reward=None)
    shared: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        defect: str = "",
        max_steps: int = 20,
        agent: AgentDefaults | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.defect, tasks = defect, box_tasks()
        if defect == "unhashed tasks":
            tasks = TaskSet(tasks.ids, tasks.__getitem__, secrets.token_hex())
        super().__init__(tasks, max_steps, render_mode)
        if agent is not None:
            self.agent = agent
        self.resets = self.moves = 0
        if defect == "repeated ids":
            tasks.ids = [*tasks.ids[:-1], tasks.ids[0]]
        if defect == "no instruction":
            tasks._load = lambda task_id: Task(task_id, " ", data={"boxes": 3})
        if defect == "narrow space":
            self.observation_space = gym.spaces.Text(3)
        if defect == "missing template":
            self.agent = AgentDefaults(template="no such template")

    # --- what a correct environment does ---------------------------------------------------------

    def _start(self, task: Task) -> Outcome:
        self.resets += 1
        boxes = task.data["boxes"]
        self.state = {"boxes": boxes, "ball": self._draw(boxes), "open": 0}
        if self.defect == "uncopyable state":
            self.state["lock"] = threading.Lock()
        if self.defect == "warns":
            warnings.warn("something looks odd", stacklevel=2)
        if self.defect == "class state":
            self.shared["open"] = 0
        if self.defect == "seeds the generator":
            random.seed(0)
        if self.defect == "remembers resets":
            return self._see(f"There are {boxes} boxes. You were here {self.resets} times.")
        if self.defect == "won at reset":
            return Outcome(f"There are {boxes} boxes.", success=True, admissible_actions=["look"])
        if self.defect == "unseeded generator":
            return self._see(f"{boxes} boxes, {np.random.default_rng().integers(2**62)} balls.")
        if self.defect == "global generator":
            return self._see(f"{boxes} boxes, {random.getrandbits(62)} balls.")
        return self._see(f"There are {boxes} boxes.")

    def _draw(self, boxes: int) -> int:
        if self.defect == "global numpy generator":
            return int(np.random.randint(1, boxes + 1))  # noqa: NPY002
        return int(self.np_random.integers(1, boxes + 1))

    def _act(self, action: str) -> Outcome:
        self.moves += 1
        listed = self._listed()
        if action not in listed or (self.defect == "lists too much" and action == "look"):
            if self.defect == "raises on junk":
                raise ValueError(f"bad action {action!r}")
            said = "<\ud800>" if self.defect == "unencodable" else "You cannot do that."
            return self._see(said, valid=self.defect == "accepts junk")
        if action == "look":
            return self._see("You look around.")
        if action == "take ball":
            last = "" if self.defect == "empty last observation" else "You have the ball."
            return Outcome(last, 1.0, terminated=True, success=True, admissible_actions=[])
        box = int(action.removeprefix("open box "))
        self.state["open"] = box
        if self.defect == "class state":
            self.shared["open"] = self.shared.get("open", 0) + box
            return self._see(f"Box {box}; so far {self.shared['open']}.")
        return self._see(f"Box {box} is open. {'A ball!' if self._found() else 'Nothing.'}")

    def _found(self) -> bool:
        return bool(self.state["open"] == self.state["ball"])

    def _listed(self) -> list[str]:
        boxes = [f"open box {i}" for i in range(1, self.state["boxes"] + 1)]
        return [*boxes, "look", *(["take ball"] if self._found() else [])]

    def _see(self, text: str, valid: bool = True) -> Outcome:
        if self.defect == "unsaved counter":
            text += f" {self.moves} moves."
        if self.defect == "process id":
            text += f" [{os.getpid()}]"
        more = {"seen": np.float64(1.0)} if self.defect == "numpy in info" else {}
        return Outcome(text, action_is_valid=valid, admissible_actions=self._listed(), info=more)

    def reference_solution(self) -> list[str]:
        if self.defect == "no solver":
            return super().reference_solution()
        if self.defect == "wrong solver":
            return [f"open box {1 + self.state['ball'] % self.state['boxes']}"]
        if self.defect == "late solver":
            return [*["look"] * 20, f"open box {self.state['ball']}", "take ball"]
        if self.defect == "acting solver":
            self.state["open"] = self.state["ball"]
        opening = [] if self._found() else [f"open box {self.state['ball']}"]
        return [*opening, "take ball"]

    # --- ways to break what the base class does ---------------------------------------------------

    def _choose(self, options: dict[str, Any]) -> Task:
        if self.defect == "ignores options":
            options = {}
        unknown = "task_id" in options and options["task_id"] not in self.tasks
        if self.defect == "silent about unknown ids" and unknown:
            options = {}
        if self.defect == "curt about unknown ids" and unknown:
            raise KeyError("no")
        if self.defect == "one task only" and not options:
            options = {"task_index": 0}
        if self.defect == "unseeded task choice" and not options:
            options = {"task_index": int(np.random.default_rng().integers(len(self.tasks)))}
        return super()._choose(options)

    def _get_state(self) -> Any:
        return self.state if self.defect == "shared state" else super()._get_state()

    def _set_state(self, state: Any) -> None:
        if self.defect == "shared state":
            self.state = state
        else:
            super()._set_state(state)

    def restore_state(self, state: Any) -> None:
        before = self.np_random.bit_generator.state
        super().restore_state(state)
        if self.defect == "generator not restored":
            self.np_random.bit_generator.state = before

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.defect == "goes on after the end":
            self._over = False
        observation, reward, terminated, truncated, info = super().step(action)
        if self.defect == "endless":
            self._over = terminated
            truncated = False
        if self.defect == "early truncation" and self._steps == 5:
            truncated = self._over = True
        if self.defect == "bytes":
            observation = observation.encode()  # type: ignore[assignment]
        return observation, reward, terminated, truncated, info

    def _info(self, outcome: Outcome) -> dict[str, Any]:
        info = super()._info(outcome)
        if self.defect == "missing key":
            del info["score"]
        wrong: dict[str, dict[str, Any]] = {
            "int for bool": {"success": int(info["success"])},
            "score of 3": {"score": 3.0},
            "tuple of actions": {"admissible_actions": ("look",)},
            "not a number": {"score": float("nan")},
        }
        return {**info, **wrong.get(self.defect, {})}


@pytest.fixture
def box_env() -> type[BoxEnv]:
    """The environment's class."""
    return BoxEnv


@pytest.fixture(autouse=True)
def registries(own_environments: None) -> None:
    """Tests in the same process must not see each other's ids."""
