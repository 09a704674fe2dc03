"""verl-agent's loop over our environment manager, from its interface as recorded here: it is on no index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paw_gym import AgentInterface, make_agent_env
from paw_gym.adapters.verl_agent import EnvironmentManager

ENV = "paw_gym/ALFWorld-v0"


def collect(envs: Any, answer: Any, max_steps: int, rows: Any = None) -> dict[str, Any]:
    """The calls that verl-agent's ``TrajectoryCollector`` makes, in its order."""
    obs, infos = envs.reset(kwargs=rows)
    size = len(obs["text"])
    over, total = np.zeros(size, bool), np.zeros(size)
    batches, every = ([[] for _ in range(size)] for _ in range(2))
    for _ in range(max_steps):
        active = ~over
        obs, rewards, dones, infos = envs.step([answer(i, infos[i]) for i in range(size)])
        assert rewards.shape == dones.shape == (size,)
        total += rewards * active
        for i in range(size):
            batches[i].append({"active_masks": bool(active[i])})
            every[i].append(infos[i])
        over = over | dones
        if over.all():
            break
    success = envs.success_evaluator(
        total_infos=every, total_batch_list=batches, episode_rewards=total, episode_lengths=None
    )
    return {"obs": obs, "rewards": total, "infos": every, "success": success}


def test_experts_and_others_side_by_side() -> None:
    """Half of the environments are solved, half never: each has its own end, reward and success."""
    envs = EnvironmentManager(ENV, groups=2, group_size=2, split="valid_seen", max_steps=40)
    envs.reset()
    plans = {}
    for i, episode in enumerate(envs.episodes):
        agent = make_agent_env(ENV, split="valid_seen")
        agent.reset(seed=0, options={"task_id": episode.task_id})
        plans[i] = iter(agent.reference_solution() if i % 2 == 0 else [])
    rows = [{"task_id": e.task_id} for e in envs.episodes]
    found = collect(envs, lambda i, info: next(plans[i], "look around"), 40, rows)
    assert found["success"]["success_rate"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert found["rewards"].tolist() == [10.0, 0.0, 10.0, 0.0]
    kinds = [name for name in found["success"] if name.endswith("_success_rate")]
    assert sum(len(found["success"][name]) for name in kinds) == 4
    last = found["infos"][0][-1]
    assert last["won"] is True and not found["infos"][1][0]["is_action_valid"]
    assert found["obs"]["image"] is None
    assert len(envs.episodes[0].transitions) < len(envs.episodes[1].transitions) == 40


def test_groups_lie_next_to_each_other_and_start_the_same() -> None:
    envs = EnvironmentManager(ENV, groups=3, group_size=2, seed=5, split="train")
    obs, infos = envs.reset()
    tasks = [info["task_id"] for info in infos]
    assert tasks[0::2] == tasks[1::2] and len(set(tasks)) == 3
    assert obs["anchor"][0::2] == obs["anchor"][1::2]
    for anchor, text in zip(obs["anchor"], obs["text"], strict=True):
        assert anchor.splitlines()[-1] in text
    again = EnvironmentManager(ENV, groups=3, group_size=2, seed=5, split="train")
    assert again.reset()[0] == obs
    assert EnvironmentManager(ENV, groups=3, group_size=2, seed=6, split="train").reset()[0] != obs


def test_validation_goes_through_its_tasks_in_order() -> None:
    ids = list(make_agent_env(ENV, split="valid_seen").tasks.ids)
    envs = EnvironmentManager(ENV, groups=3, task_ids=ids[:5], split="valid_seen")
    seen = [info["task_id"] for _ in range(2) for info in envs.reset()[1]]
    assert seen == [*ids[:5], ids[0]]


def test_an_invalid_action_costs_nothing_here() -> None:
    """verl-agent subtracts its own penalty."""
    for reward, settings in ((0.0, {}), (-0.1, {"invalid_penalty": -0.1})):
        envs = EnvironmentManager(ENV, groups=1, **settings)
        envs.reset()
        _, rewards, _, infos = envs.step(["no tags"])
        assert rewards[0] == pytest.approx(reward) and not infos[0]["is_action_valid"]


def test_wrong_numbers_and_rows_are_named() -> None:
    envs = EnvironmentManager(ENV, groups=2, group_size=2)
    envs.reset()
    with pytest.raises(ValueError, match="Expected 4 responses"):
        envs.step(["look"])
    rows: list[dict[str, Any]] = [{"task_id": i} for i in make_agent_env(ENV).tasks.ids[:4]]
    with pytest.raises(ValueError, match="2 groups of 2 rows"):
        envs.reset(rows)
    for rest in ({}, {"task_id": None}):
        with pytest.raises(ValueError, match="2 of 4 rows name a task"):
            envs.reset([rows[0], rows[0], rest, rest])
    assert envs.reset([{"task_id": None}] * 4)[1]  # none of them: sampled
    with pytest.raises(KeyError, match="nowhere"):
        EnvironmentManager(ENV, groups=1, task_ids=["nowhere"])
    with pytest.raises(ValueError, match="task_ids is empty"):
        EnvironmentManager(ENV, groups=2, task_ids=[])


def test_a_failed_start_leaves_no_environment_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AgentInterface] = []
    closed: list[AgentInterface] = []
    make = AgentInterface.__init__

    def making(self: AgentInterface, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(AgentInterface, "__init__", making)
    monkeypatch.setattr(AgentInterface, "close", lambda self: closed.append(self))
    with pytest.raises(KeyError):
        EnvironmentManager(ENV, groups=1, task_ids=["nowhere"])
    with pytest.raises(ValueError, match="at least 1"):
        EnvironmentManager(ENV, groups=0)
    assert made and {id(env) for env in made} == {id(env) for env in closed}
