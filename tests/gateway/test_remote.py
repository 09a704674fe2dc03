"""Remote environments behave as the same environments in this process do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from servers import free_port, wait_until

from paw_gym import AgentInterface, EnvPool, check_text_env, make_remote
from paw_gym.internals.constructors import has_splits
from paw_gym.internals.http import JsonClient
from paw_gym.remote import RemoteError, ServerUnavailableError, SessionLostError
from paw_gym.remote.env import RemoteEnv
from paw_train.evaluation import evaluate_from_args

from .conftest import RunningGateway

CASES: list[tuple[str, dict[str, Any]]] = [
    ("paw_gym/ALFWorld-v0", {"split": "valid_seen"}),
    ("paw_gym/WebShop-v0", {"split": "test"}),
    ("paw_gym/SearchQA-v0", {"difficulty": "easy"}),
    ("tests/Dice-v0", {}),
]


def _play(env: Any, episodes: int = 3) -> list[str]:
    """Transitions as JSON: of a seeded episode, and of others that follow from its generator."""
    agent, lines = AgentInterface(env), []
    for number in range(episodes):
        agent.reset(seed=11 if number == 0 else None)
        actions = agent.text_env.reference_solution()
        for action in ["no such thing", *actions]:
            *_, terminated, truncated, info = agent.step(agent.response_for(action))
            lines.append(json.dumps(info["transition"].to_dict()))
            if terminated or truncated:
                break
    return lines


@pytest.mark.parametrize(("env_id", "kwargs"), CASES, ids=[case[0] for case in CASES])
def test_it_plays_the_same_to_the_byte(
    gateway: RunningGateway, env_id: str, kwargs: dict[str, Any]
) -> None:
    here = gym.make(env_id, disable_env_checker=True, **kwargs)
    there = make_remote(gateway.url, env_id, **kwargs)
    assert _play(there) == _play(here)
    assert list(there.tasks.ids) == list(here.unwrapped.tasks.ids)
    assert there.tasks.fingerprint == here.unwrapped.tasks.fingerprint
    assert there.max_steps == here.unwrapped.max_steps
    defaults = RemoteEnv.defaults(url=gateway.url, remote_id=env_id, **kwargs)
    for name in ("agent", "held_out_splits", "small_template", "type_groups"):
        assert getattr(there, name) == getattr(here.unwrapped, name) == getattr(defaults, name), (
            name
        )
    assert defaults.has_splits == has_splits(env_id)
    there.close()


@pytest.mark.parametrize("env_id", ["paw_gym/SearchQA-v0", "paw_gym/Sokoban-v0", "tests/Dice-v0"])
def test_an_evaluation_is_that_of_the_environment_itself(
    gateway: RunningGateway, tmp_path: Path, env_id: str
) -> None:
    """Splits, prompts and scores; an environment without splits is not asked for one."""
    found = []
    there = f"Remote-v0 env.kwargs.url={gateway.url} env.kwargs.remote_id={env_id}"
    for where in (f"env.id={env_id}", f"env.id=paw_gym/{there}"):
        settings = [*where.split(), "evaluation.tasks=3", "rollout.max_response_tokens=64"]
        path = evaluate_from_args("expert", settings, str(tmp_path / str(len(found))), quiet=True)
        result = json.loads(path.read_text(encoding="utf-8"))
        names = ("panel_hash", "prompt_hash", "score", "runs", "by_type", "averages")
        settings_of = result["settings"]["env"]
        split = result["environment"]["split"]
        found.append([split, settings_of["history_length"], *(result[name] for name in names)])
    assert found[0] == found[1]


FEW = ["save_restore_agent", "task_options", "invalid_actions", "transitions", "determinism"]


@pytest.mark.parametrize(
    ("env_id", "checks"), [("tests/Dice-v0", None), ("paw_gym/ALFWorld-v0", FEW)]
)
def test_it_keeps_the_contract(gateway: RunningGateway, env_id: str, checks: Any) -> None:
    at = {"url": gateway.url, "remote_id": env_id, "time_limit": None}
    report = check_text_env("paw_gym/Remote-v0", tasks=2, seed=1, only=checks, **at)
    report.raise_for_failures()


def test_a_pool_asks_all_of_them_in_one_request(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    ask = JsonClient.ask

    def counting(self: JsonClient, method: str, path: str, payload: Any, **settings: Any) -> Any:
        # what other tests of this process gave up is closed with whichever request comes next
        requests.append(sum(call["op"] != "close" for call in payload["calls"]))
        return ask(self, method, path, payload, **settings)

    monkeypatch.setattr(JsonClient, "ask", counting)
    at = {"url": gateway.url, "remote_id": "tests/Dice-v0"}
    there = EnvPool("paw_gym/Remote-v0", 4, 3, seed=5, **at)
    there.reset()
    requests.clear()
    active = there.reset()
    assert [count for count in requests if count > 1] == [12]  # tasks not seen before come alone
    requests.clear()
    there.step([there.env_of(slot).response_for("roll") for slot in active])
    assert requests == [12]
    there.close()


def test_in_a_pool_a_failure_takes_one_episode(lone: RunningGateway) -> None:
    pool = EnvPool("paw_gym/Remote-v0", 1, 4, url=lone.url, remote_id="tests/Trouble-v0")
    for fatal in ("raise", "exit"):
        active = pool.reset()
        wrap = pool.env_of(active[0]).response_for
        pool.step([wrap("a")] * 4)
        left = pool.step([wrap("b"), wrap(fatal), wrap("b"), wrap("b")])
        assert [slot.index for slot in left] == [0, 2, 3]
        assert "SessionLostError" in (pool.episodes[1].error or "")
        assert {slot.episode.transitions[-1].next_observation for slot in left} == {"2 ['a', 'b'] "}
        pool.step([wrap("c")] * 3)
        assert all(not episode.error for episode in pool.episodes if episode.transitions[2:])
    pool.close()


def test_in_a_pool_an_action_is_judged_before_it_is_taken(gateway: RunningGateway) -> None:
    at = {"url": gateway.url, "remote_id": "tests/Trouble-v0"}  # which takes no word twice
    pool = EnvPool("paw_gym/Remote-v0", 1, 2, require_admissible=True, **at)
    wrap = pool.env_of(pool.reset()[0]).response_for
    pool.step([wrap("a"), wrap("a")])
    pool.step([wrap("b"), wrap("a")])
    problems = [[t.info["problem"] for t in episode.transitions] for episode in pool.episodes]
    assert problems == [[None, None], [None, "the action is not admissible"]]
    pool.close()


@pytest.mark.parametrize(
    ("action", "others"),
    [("x" * 500_001, "roll"), ("x" * 20_000_000, "x" * 300_000)],
    ids=["too long", "longer than a request"],
)
def test_in_a_pool_an_action_that_is_too_long_takes_its_episode_alone(
    gateway: RunningGateway, action: str, others: str
) -> None:
    pool = EnvPool("paw_gym/Remote-v0", 4, url=gateway.url, remote_id="tests/Dice-v0")
    wrap = pool.env_of(pool.reset()[0]).response_for
    left = pool.step([wrap(others), wrap(others), wrap(action), wrap(others)])
    assert [slot.index for slot in left] == [0, 1, 3]
    assert all(len(slot.episode.transitions) == 1 for slot in left)
    assert "RemoteError" in (pool.episodes[2].error or "")
    pool.close()


def test_in_a_pool_long_actions_are_as_good_as_alone(gateway: RunningGateway) -> None:
    pool = EnvPool("paw_gym/Remote-v0", 4, url=gateway.url, remote_id="tests/Dice-v0")
    wrap = pool.env_of(pool.reset()[0]).response_for
    left = pool.step([wrap("\U0001f3b2" * 400_000)] * 4)  # each 4.8 MB of JSON
    assert [slot.index for slot in left] == [0, 1, 2, 3]
    pool.close()


def test_after_a_failure_reset_begins_anew(gateway: RunningGateway) -> None:
    env = make_remote(gateway.url, "tests/Trouble-v0")
    for fatal, reason in (("raise", "ZeroDivisionError: as told"), ("leave", "SystemExit"),
                          ("exit", "process"), ("crash", "signal")):  # fmt: skip
        env.reset(seed=0)
        env.step("fine")
        with pytest.raises(SessionLostError, match=f"{reason}.*reset"):
            env.step(fatal)
        with pytest.raises(RuntimeError, match="reset"):
            env.step("fine")
    observation, _ = env.reset(seed=0)
    assert observation == "Well?"
    env.close()


def test_a_session_that_expired_is_told_and_replaced(serve: Any) -> None:
    gateway = serve("--session-minutes", "0.1", "--workers", "1")
    env = make_remote(gateway.url, "tests/Dice-v0")
    env.reset(seed=0)
    wait_until(lambda: gateway.ask("GET", "/health")[1]["sessions"] == 0, "sessions expire")
    with pytest.raises(SessionLostError, match="expired.*reset"):
        env.step("roll")
    env.reset(seed=0)
    env.step("roll")


def test_environments_that_nobody_closed_are_closed(gateway: RunningGateway) -> None:
    before = gateway.ask("GET", "/health")[1]["sessions"]
    for _ in range(3):
        env = make_remote(gateway.url, "tests/Dice-v0")
        env.reset(seed=0)
        del env
    last = make_remote(gateway.url, "tests/Dice-v0")
    last.reset(seed=0)
    last.close()
    assert gateway.ask("GET", "/health")[1]["sessions"] <= before


def test_errors_say_what_to_do(gateway: RunningGateway) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for error, says, url, env_id, kwargs in (
        (ValueError, "no environment 'paw_gym/ALFWorld-v1'.*ALFWorld-v0", "", "ALFWorld-v1", {}),
        (ValueError, "data_dir is the server's.*split", "", "ALFWorld-v0", {"data_dir": "/etc"}),
        (ValueError, "Unknown split 'trian'.*train", "", "ALFWorld-v0", {"split": "trian"}),
        (ServerUnavailableError, "paw serve gateway", nobody, "ALFWorld-v0", {}),
        (ValueError, "address", "127.0.0.1:80", "ALFWorld-v0", {}),
    ):
        with pytest.raises(error, match=says):
            make_remote(url or gateway.url, f"paw_gym/{env_id}", **kwargs)
    env = make_remote(gateway.url, "tests/Dice-v0")
    with pytest.raises(RuntimeError, match="reset"):
        env.step("roll")
    with pytest.raises(KeyError, match="dice/1"):
        env.reset(options={"task_id": "dice/111"})
    with pytest.raises(IndexError, match="12 tasks"):
        env.reset(options={"task_index": 12})
    with pytest.raises(TypeError, match="str"):
        env.step(3)


def test_an_episode_goes_on_though_its_worker_died_of_another(lone: RunningGateway) -> None:
    """Its observations and its generator are those of one that nothing happened to; or it is told."""
    envs = [make_remote(lone.url, "tests/Dice-v0") for _ in range(4)]
    here, *there, with_expert = envs
    other, whim = (make_remote(lone.url, "tests/Trouble-v0") for _ in range(2))
    for env in (*envs, other, whim):
        env.reset(seed=7)
    with_expert.expert()
    first, *_ = [env.step("roll") for env in envs]
    expected = [first, here.step("roll")]
    whim.step("whim")
    with pytest.raises(SessionLostError):
        other.step("exit")
    assert all(env.step("roll") == expected[1] for env in there)
    assert [here.step("roll") for _ in "12"] == [there[0].step("roll") for _ in "12"]
    assert there[1].np_random.random() != there[0].np_random.random()
    with pytest.raises(SessionLostError, match="another way"):
        whim.step("next")
    with pytest.raises(SessionLostError, match="reset"):
        with_expert.step("roll")
    with_expert.reset(seed=7)
    assert with_expert.step("roll") == expected[0]
    for env in (*envs, other, whim):
        env.close()


def test_a_replayed_state_that_differs_is_told(gateway: RunningGateway) -> None:
    env = make_remote(gateway.url, "tests/Trouble-v0")
    env.reset(seed=0)
    env.step("fine")
    state = env.save_state()
    env.restore_state(state)
    env.step("whim")
    state = env.save_state()
    with pytest.raises(RemoteError, match="not deterministic"):
        env.restore_state(state)
    env.close()
