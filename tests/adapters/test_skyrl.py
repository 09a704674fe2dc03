"""skyrl-gym: our environments under its interface."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed")

import numpy as np
import skyrl_gym

from paw_gym import make_agent_env
from paw_gym.adapters.skyrl import register_skyrl

ENV = "paw_gym/ALFWorld-v0"
register_skyrl("paw_test_alfworld", ENV, split="valid_seen")


def _made(**extras: Any) -> Any:
    return skyrl_gym.make("paw_test_alfworld", env_config=None, extras=extras)


def test_it_plays_the_same_dialogue() -> None:
    agent = make_agent_env(ENV, split="valid_seen", mode="conversation")
    task_id = agent.tasks.ids[3]
    prompt, _ = agent.reset(seed=5, options={"task_id": task_id})
    env = _made(task_id=task_id, seed=5)
    system = {"role": "system", "content": "Be brief."}
    messages, metadata = env.init([system, {"role": "user", "content": task_id}])
    assert messages == [system, {"role": "user", "content": prompt}]
    assert metadata["task_id"] == task_id
    responses = ["no tags at all", *agent.reference_solution()]
    for number, response in enumerate(responses):
        prompt, reward, terminated, truncated, info = agent.step(response)
        output = env.step(response)
        assert output["reward"] == reward
        assert output["done"] == (terminated or truncated) == (number == len(responses) - 1)
        assert output["metadata"]["action_is_valid"] == info["action_is_valid"]
        expected = [] if output["done"] else [{"role": "user", "content": prompt}]
        assert output["observations"] == expected
    assert env.get_metrics() == {"success": 1.0, "score": 1.0, "turns": len(responses)}
    env.close()


def test_turns_are_limited_and_metrics_add_up() -> None:
    env = _made(task_index=0, max_turns=2)
    env.init([])
    assert not env.step("a")["done"]
    assert env.step("b")["done"]
    kind = type(env.unwrapped if hasattr(env, "unwrapped") else env)
    combined = kind.aggregate_metrics([env.get_metrics()] * 2)
    assert combined["success"] == 0.0 and combined["turns"] == 2.0


def test_extras_as_a_data_frame_gives_them() -> None:
    """Integers of NumPy, and nulls where a row lacks a column."""
    first, again = (_made(task_id=None, seed=np.int64(3), max_turns=None) for _ in range(2))
    assert first.init([])[0] == again.init([])[0]
    started = {_made(seed=None).init([])[1]["task_id"] for _ in range(3)}
    assert len(started) == 1  # a null is no random seed
