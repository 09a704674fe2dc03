"""OpenEnv: its client against our server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("openenv.core", reason="openenv is not installed")

from files import load
from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from openenv.validation import Level, Verdict, run_validation
from servers import in_thread

from paw_gym import make_agent_env
from paw_gym.adapters.openenv import create_openenv_app
from paw_train.cli import main
from paw_train.integrations.packages import write_openenv

ENV = "paw_gym/ALFWorld-v0"


def test_their_client_plays_ours() -> None:
    agent = make_agent_env(ENV, split="valid_seen")
    task_id = agent.tasks.ids[2]
    prompt, _ = agent.reset(seed=4, options={"task_id": task_id})
    with ExitStack() as opened:
        url = opened.enter_context(in_thread(create_openenv_app(ENV, split="valid_seen")))
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


def test_a_package_is_valid_and_serves_the_same_episode(tmp_path: Path) -> None:
    package = tmp_path / "package"
    words = ["export", "ALFWorld", str(package), "--to", "openenv", "--kw", "split=valid_seen"]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
    report = run_validation(package, max_level=Level.STATIC, skip_build=True)
    assert report.verdict is Verdict.PASS, report.results
    env = make_agent_env(ENV, split="valid_seen")
    prompt, _ = env.reset(seed=4)
    with in_thread(load(str(package / "server" / "app.py")).app) as url:
        checked = validate_running_environment(url)
        assert checked["passed"], checked["summary"]
        with GenericEnvClient(base_url=url).sync() as client:
            assert client.reset(seed=4).observation["text"] == prompt
    with pytest.raises(FileExistsError, match="--force"):
        write_openenv(package, ENV, {})
    write_openenv(package, ENV, {}, force=True)


@pytest.mark.parametrize("env_id", ["paw_gym/Sudoku-v0", "paw_gym/2048-v0", "paw_gym/WebShop-v0"])
def test_packages_of_other_worlds_are_valid(env_id: str, tmp_path: Path) -> None:
    write_openenv(tmp_path / "package", env_id, {})
    report = run_validation(tmp_path / "package", max_level=Level.STATIC, skip_build=True)
    assert report.verdict is Verdict.PASS, report.results
