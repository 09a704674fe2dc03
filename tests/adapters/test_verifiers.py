"""verifiers: our tasks as its task set, and its way of playing one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers 0.4 is not installed")

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import environment_class, load_environment, resolve_env_config

from paw_gym import AgentInterface, make_agent_env
from paw_gym.adapters.verifiers import PawEnv, PawTaskset

ENV = "paw_gym/ALFWorld-v0"


def _load(**taskset: Any) -> Any:
    player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return load_environment(resolve_env_config({"taskset": taskset, "player": player}))


def _environment(**taskset: Any) -> Any:
    return _load(id="paw_gym_verifiers", env_id=ENV, tasks=6, **taskset)


def test_it_is_found_by_its_name_with_our_tasks_in_order_to_choose_from() -> None:
    assert environment_class("paw_gym_verifiers") is PawEnv
    env = _environment(env_kwargs={"split": "valid_seen"})
    assert type(env.taskset) is PawTaskset
    ids = list(make_agent_env(ENV, split="valid_seen").tasks.ids)[:6]
    assert [task.data.task_id for task in env.taskset] == ids
    assert [task.data.idx for task in env.taskset.take(2)] == [0, 1]
    [one] = env.taskset.include(ids=[ids[4]])
    assert one.data.task_id == ids[4] and one.key.endswith(ids[4])
    wire = one.data.model_dump(mode="json")
    assert type(one).data_type().model_validate(wire) == one.data


class Script:
    """Stands where a model plays: gives prepared replies through the agent's interface."""

    def __init__(self, replies: list[str], trace: Any) -> None:
        self.replies, self.trace, self.said = list(replies), trace, []

    @asynccontextmanager
    async def interaction(self, task: Any) -> Any:
        yield self

    async def turn(self, message: str | None = None) -> Any:
        self.said.append(message)
        if not self.replies:
            return vf.Segment(messages=[], terminated=True)
        return vf.Segment(messages=[vf.AssistantMessage(content=self.replies.pop(0))])


def _trace() -> Any:
    trace = SimpleNamespace(info={}, metrics={}, rewards={})
    for name in ("record_metric", "record_reward"):
        setattr(trace, name, getattr(vf.Trace, name).__get__(trace))
    return trace


def _played(env: Any, task: Any, replies: list[str]) -> Script:
    player = Script(replies, _trace())
    asyncio.run(env.run(task, SimpleNamespace(player=player)))
    return player


def test_an_episode_is_ours_turn_by_turn() -> None:
    env = _environment(env_kwargs={"split": "valid_seen"}, seed=9)
    [task] = env.taskset.take(1)
    agent = make_agent_env(ENV, split="valid_seen", mode="conversation")
    prompts = [agent.reset(seed=9, options={"task_id": task.data.task_id})[0]]
    replies = ["no tags", *agent.reference_solution()]
    rewards, records = [], []
    for reply in replies:
        prompt, reward, *_, info = agent.step(reply)
        prompts.append(prompt), rewards.append(reward), records.append(info["transition"])
    player = _played(env, task, replies)
    assert player.said == prompts[:-1]
    trace = player.trace
    assert trace.rewards["episode_reward"].score == pytest.approx(sum(rewards))
    assert trace.metrics == {"success": 1.0, "score": 1.0}
    got = trace.info["transitions"]
    assert [t["next_observation"] for t in got] == [t.next_observation for t in records]


def test_a_model_that_stops_ends_the_episode() -> None:
    env = _environment()
    [task] = env.taskset.take(1)
    player = _played(env, task, ["<think></think><action>look</action>"])
    assert player.trace.metrics["success"] == 0.0
    assert len(player.trace.info["transitions"]) == 1


def test_environments_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[AgentInterface] = []
    monkeypatch.setattr(AgentInterface, "close", lambda self: closed.append(self))
    env = _environment()
    [task] = env.taskset.take(1)
    before = len(closed)
    assert before  # the one that listed the tasks
    lost = task.data.model_copy(update={"task_id": "nowhere"})
    with pytest.raises(KeyError, match="nowhere"):
        asyncio.run(env.run(SimpleNamespace(data=lost), SimpleNamespace()))
    assert len(closed) == before + 1
