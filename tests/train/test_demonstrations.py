"""Experts of any environment: they go on after a slip, and one that fails loses its own episode only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hostile import tiny_policy

from paw_gym import EnvPool, Outcome, Task, TaskSet, TextEnv, make_agent_env
from paw_gym.registration import register_text_env
from paw_gym.transition import Transition
from paw_train.rollouts.rollout import Trajectory, demonstrations
from paw_train.rollouts.tokens import ACTION


class PasswordEnv(TextEnv):
    """Say the task's own word and count to three; ``wait`` alone is listed."""

    def __init__(self, max_steps: int = 60, render_mode: str | None = None) -> None:
        tasks = [Task(name, "Say the word.", data=f"say {name}") for name in ("a", "b", "c")]
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = 0
        return Outcome("Well?", admissible_actions=["wait"])

    def _act(self, action: str) -> Outcome:
        right = action == f"{self.task.data} {self.state}"
        self.state += right
        valid, done = right or action == "wait", self.state == 3
        said = "Go on." if valid else "Nothing happens."
        return Outcome(
            said, float(done), done, done, action_is_valid=valid, admissible_actions=["wait"]
        )

    def reference_solution(self) -> list[str]:
        return [f"{self.task.data} {number}" for number in range(self.state, 3)]


class BadExpertEnv(PasswordEnv):
    """Its expert fails in the task ``b`` and knows no further in ``c``."""

    def expert(self) -> Callable[[], str]:
        def act() -> str:
            if self.task.id == "b" and self.state == 1:
                raise ZeroDivisionError("the expert is confused")
            left = self.reference_solution()
            return next(iter(left if self.task.id != "c" or self.state < 2 else []))

        return act


def _played(env: type[TextEnv], times: int, *how: Any, chat: Any = None) -> list[Trajectory]:
    register_text_env("tests/Demo-v0", env, replace=True)
    pool = EnvPool(lambda: make_agent_env("tests/Demo-v0", mode="conversation"), seed=0)
    return demonstrations(pool, chat, ["a", "b", "c"] * times, *how)


def _is_slip(step: Transition) -> bool:
    return step.action == "wait" or not step.action_is_valid


def test_an_expert_that_fails_ends_its_own_episode() -> None:
    a, b, c = (trajectory.episode for trajectory in _played(BadExpertEnv, 1))
    assert a.success and a.error is None
    assert "the expert is confused" in (b.error or "") and len(b.transitions) == 1
    assert "no further action" in (c.error or "") and len(c.transitions) == 2


@pytest.mark.parametrize("slips", ["random", "misplaced"])
def test_the_default_expert_recovers_from_slips(slips: str) -> None:
    played = _played(PasswordEnv, 20, 0.4, np.random.default_rng(0), slips)
    assert all(trajectory.episode.success for trajectory in played)
    own = [t.episode.transitions for t in played if t.episode.task_id == "c"]
    lengths = list(map(len, own))
    assert max(lengths) > 3 == min(lengths), "some slipped, and some went straight"
    done = {t.action.rstrip(" 012") for steps in own for t in steps}
    assert done == {"wait", "say c"} | ({"say a", "say b"} if slips == "misplaced" else set())


def test_imitated_slips_have_their_share_and_come_in_runs() -> None:
    steps = [
        list(map(_is_slip, trajectory.episode.transitions))
        for trajectory in _played(PasswordEnv, 300, 0.3, np.random.default_rng(1), "imitated")
    ]
    assert np.mean([slip for row in steps for slip in row]) == pytest.approx(0.3, abs=0.02)
    after_one = [later for row in steps for slip, later in pairwise(row) if slip]
    assert np.mean(after_one) == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize("slips", ["random", "imitated"])
def test_a_slip_is_an_example_only_where_it_is_imitated(slips: str) -> None:
    rng = np.random.default_rng(2)
    for trajectory in _played(PasswordEnv, 5, 0.4, rng, slips, chat=tiny_policy().chat):
        steps, (row,) = trajectory.episode.transitions, trajectory.rows
        turns = {turn for role, turn in zip(row.role, row.turn, strict=True) if role == ACTION}
        assert turns == {n for n, s in enumerate(steps) if slips == "imitated" or not _is_slip(s)}
