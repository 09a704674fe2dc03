"""Experts of any environment: they go on after a slip, and one that fails loses its own episode only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paw_gym import EnvPool, Outcome, Task, TaskSet, TextEnv, make_agent_env
from paw_gym.registration import register_text_env
from paw_train.rollouts.rollout import demonstrations


class CorridorEnv(TextEnv):
    """Walk east to the end of a corridor."""

    def __init__(self, max_steps: int = 60, render_mode: str | None = None) -> None:
        tasks = [Task(name, "Walk to the end.", data=5) for name in ("a", "b", "c")]
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = 0
        return Outcome("You are at the beginning.", admissible_actions=["east", "west"])

    def _act(self, action: str) -> Outcome:
        self.state = max(0, self.state + {"east": 1, "west": -1}.get(action, 0))
        done = self.state == self.task.data
        seen = f"You have {self.task.data - self.state} steps to go."
        return Outcome(seen, float(done), done, done, admissible_actions=["east", "west"])

    def reference_solution(self) -> list[str]:
        return ["east"] * (self.task.data - self.state)


class BadExpertEnv(CorridorEnv):
    """Its expert fails in the task ``b`` and knows no further in ``c``."""

    def expert(self) -> Callable[[], str]:
        def act() -> str:
            if self.task.id == "b" and self.state == 2:
                raise ZeroDivisionError("the expert is confused")
            return next(iter(["east"] if self.task.id != "c" or self.state < 3 else []))

        return act


def _pool(env: type[TextEnv]) -> EnvPool:
    register_text_env("tests/Demo-v0", env, replace=True)
    return EnvPool(lambda: make_agent_env("tests/Demo-v0"), seed=0)


def test_the_default_expert_recovers_from_slips() -> None:
    played = demonstrations(
        _pool(CorridorEnv), None, ["a", "b", "c"] * 10, 0.4, np.random.default_rng(0)
    )
    lengths = [len(trajectory.episode.transitions) for trajectory in played]
    assert all(trajectory.episode.success for trajectory in played)
    assert max(lengths) > 5 == min(lengths), "some slipped, and some went straight"


def test_an_expert_that_fails_ends_its_own_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = demonstrations(_pool(BadExpertEnv), None, ["a", "b", "c"])
    a, b, c = (trajectory.episode for trajectory in played)
    assert a.success and a.error is None
    assert "the expert is confused" in b.error and len(b.transitions) == 2
    assert "no further action" in c.error and len(c.transitions) == 3


class PasswordEnv(TextEnv):
    """Say the task's own word three times; ``wait`` alone is listed."""

    def __init__(self, max_steps: int = 60, render_mode: str | None = None) -> None:
        tasks = [Task(name, "Say the word.", data=f"say {name}") for name in ("a", "b", "c")]
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = 0
        return Outcome("Well?", admissible_actions=["wait"])

    def _act(self, action: str) -> Outcome:
        right = action == self.task.data
        self.state += right
        done = self.state == 3
        return Outcome(
            "Go on." if right else "Nothing happens.",
            float(done),
            done,
            done,
            action_is_valid=right or action == "wait",
            admissible_actions=["wait"],
        )

    def reference_solution(self) -> list[str]:
        return [self.task.data] * (3 - self.state)


@pytest.mark.parametrize(("misplaced", "expected"), [(0.0, {"wait"}), (1.0, {"say a", "say b"})])
def test_a_misplaced_action_is_what_the_expert_does_in_another_episode(
    misplaced: float, expected: set[str]
) -> None:
    rng = np.random.default_rng(0)
    played = demonstrations(_pool(PasswordEnv), None, ["a", "b", "c"] * 20, 0.4, rng, misplaced)
    assert all(trajectory.episode.success for trajectory in played)
    slips = {
        t.action
        for trajectory in played
        for t in trajectory.episode.transitions
        if trajectory.episode.task_id == "c" and t.action != "say c"
    }
    assert slips == expected
