"""Small panels of the registered environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted import Answers, ScriptedPolicy

from paw_gym import Outcome, Task, register_text_env
from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_train.agents import make_agent
from paw_train.agents.examples import ExampleSource
from paw_train.agents.protocol import Agent
from paw_train.evaluation import agent_env_maker
from paw_train.rollouts.policy import Policy
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings


def door_tasks(kind: str = "plain") -> list[Task]:
    return [Task(f"{kind}/{i}", f"Open door {i % 3 + 1}.", kind, i % 3 + 1) for i in range(8)]


def _doors(task: Task, rng: Any) -> Any:
    """Three doors; ``look`` costs a turn; the wrong door ends the episode with a score of its own."""
    listed = ["look", "open door 1", "open door 2", "open door 3"]
    said = yield Outcome("You stand in a hall.", admissible_actions=listed)
    while True:
        if said == f"open door {task.data}":
            yield Outcome("It is the one.", 1.0, True, True, admissible_actions=[])
        elif said.startswith("open door "):
            score = 0.5 if said.endswith("1") else 0.25
            yield Outcome("A wall.", 0.0, True, False, score, admissible_actions=[])
        said = yield Outcome(
            "Nothing moves.", action_is_valid=said == "look", admissible_actions=listed
        )


@pytest.fixture(autouse=True)
def doors(own_environments: None) -> None:
    """``test/Doors-v0``: no splits, listed actions, and a solver."""
    register_text_env(
        "test/Doors-v0",
        _doors,
        tasks=door_tasks(),
        max_steps=6,
        solve=lambda task, rng: ["look", f"open door {task.data}"],
    )


class Table:
    """An agent at a pool of environments.

    Args:
        name: the agent's.
        answers: of its model, or a real one; ``None``: no model.
        env: settings of the environment.
        split: of its tasks.
        count: tasks played, the first ones.
        settings: the agent's.
    """

    def __init__(
        self,
        name: str,
        answers: Answers | Policy | None,
        env: EnvSettings | None = None,
        split: str = "",
        count: int = 4,
        rollout: RolloutSettings | None = None,
        **settings: Any,
    ) -> None:
        env = env or EnvSettings(id="test/Doors-v0")
        self.policy: Any = ScriptedPolicy(answers) if callable(answers) else answers
        self.agent: Agent = make_agent(name, self.policy, rollout, settings)
        probe = agent_env_maker(env, split)()
        self.task_ids = list(probe.tasks.ids[:count])
        interface = self.agent.interface(probe.template)
        self.make_env = agent_env_maker(env, split, interface)
        self.agent.prepare(ExampleSource(self.make_env, self.task_ids))

    def play(self, task_ids: Sequence[str] | None = None, seed: int = 0) -> dict[str, Episode]:
        ids = list(task_ids or self.task_ids)
        done: list[Episode] = []
        seeds = {task_id: i for i, task_id in enumerate(self.task_ids)}
        pool = EnvPool(self.make_env, len(ids), self.agent.group_size, seeds=seeds)
        self.agent.run(pool, ids, seed, done.append)
        pool.close()
        assert sorted(e.task_id for e in done) == sorted(ids)
        return {e.task_id: e for e in done}


@pytest.fixture
def table() -> type[Table]:
    return Table
