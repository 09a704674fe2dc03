"""OpenEnv: its client against our server."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytest.importorskip("openenv.core", reason="openenv is not installed")

from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from servers import in_thread

from paw_gym import make_agent_env
from paw_gym.adapters.openenv import create_openenv_app

ENV = "paw_gym/ALFWorld-v0"


def test_their_client_plays_ours() -> None:
    agent = make_agent_env(ENV, split="valid_seen")
    task_id = agent.tasks.ids[2]
    prompt, _ = agent.reset(seed=4, options={"task_id": task_id})
    with ExitStack() as opened:
        url = opened.enter_context(in_thread(create_openenv_app(ENV, split="valid_seen")))
        checked = validate_running_environment(url)
        assert checked["passed"], checked["summary"]
        clients = (GenericEnvClient(base_url=url).sync() for _ in range(2))
        client, other = map(opened.enter_context, clients)
        other.reset(seed=0)
        result = client.reset(seed=4, task_id=task_id, episode_id="mine")
        assert result.observation["text"] == prompt and not result.done
        assert client.state()["episode_id"] == "mine"
        for number, response in enumerate(agent.reference_solution()):
            prompt, reward, terminated, truncated, info = agent.step(response)
            result = client.step({"message": response})
            other.step({"message": "nothing to do with it"})
            assert result.observation["text"] == prompt
            assert (result.reward, result.done) == (reward, terminated or truncated)
            told = result.observation["info"]
            assert told["success"] == info["success"] and told["truncated"] == truncated
            assert told["transition"]["next_observation"] == info["transition"].next_observation
            assert client.state()["step_count"] == number + 1
        assert result.done and result.reward == 10.0
        with pytest.raises(RuntimeError):
            client.step({"no_message": 1})
