"""OpenEnv: its client against our server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("openenv.core", reason="openenv is not installed")

from openenv.core.generic_client import GenericEnvClient
from servers import in_thread

from paw_gym import make_agent_env
from paw_gym.adapters.openenv import create_openenv_app

ENV = "paw_gym/ALFWorld-v0"


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serves applications in threads until the test is over."""
    with ExitStack() as running:
        yield lambda app: running.enter_context(in_thread(app))


def test_their_client_plays_ours(serve: Callable[[Any], str]) -> None:
    url = serve(create_openenv_app(ENV, split="valid_seen"))
    agent = make_agent_env(ENV, split="valid_seen")
    task_id = agent.tasks.ids[2]
    prompt, _ = agent.reset(seed=4, options={"task_id": task_id})
    with GenericEnvClient(base_url=url).sync() as client, GenericEnvClient(url).sync() as other:
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


def test_bare_actions_give_bare_observations(serve: Callable[[Any], str]) -> None:
    url = serve(create_openenv_app(ENV, bare=True, split="valid_seen"))
    here = make_agent_env(ENV, split="valid_seen").text_env
    with GenericEnvClient(base_url=url).sync() as client:
        first, told = here.reset(seed=3)
        result = client.reset(seed=3)
        assert result.observation["text"] == first
        assert result.observation["info"]["admissible_actions"] == told["admissible_actions"]
        for _ in range(here.max_steps):
            expected, result = here.step("look"), client.step({"message": "look"})
            assert (result.observation["text"], result.reward) == expected[:2]
            assert result.done == (expected[2] or expected[3])
            assert result.observation["info"]["truncated"] == expected[3]
