"""OpenEnv: its client against our server, and its server behind our interface."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openenv.core", reason="openenv is not installed")

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from servers import in_thread

from paw_gym import check_text_env, make_agent_env
from paw_gym.adapters.openenv import FromOpenEnv, create_openenv_app

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


def test_ours_through_theirs_is_ours(serve: Callable[[Any], str]) -> None:
    url = serve(create_openenv_app(ENV, bare=True, split="valid_seen"))
    here = make_agent_env(ENV, split="valid_seen").text_env
    there = FromOpenEnv(url, admissible=lambda o: o["info"]["admissible_actions"])
    observation, info = there.reset(seed=3)
    seed = there.state["seed"]
    first, told = here.reset(seed=seed)
    assert observation == first
    assert info["admissible_actions"] == told["admissible_actions"]
    for action in here.reference_solution():
        expected, got = here.step(action), there.step(action)
        assert got[:3] == expected[:3]
        assert got[4]["success"] == expected[4]["success"]
    assert got[4]["success"]
    there.reset(seed=3)
    ends = [there.step("look")[2:4] for _ in range(here.max_steps)]
    assert ends == [(False, False)] * (here.max_steps - 1) + [(False, True)]
    there.close()


class Guess(Action):
    number: int


class Answer(Observation):
    said: str
    left: int


class Guessing(Environment):
    """Somebody else's environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self._secret = State(), 0

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Answer:
        self._state = State(step_count=0)
        self._secret = (seed or 0) % 7
        return Answer(said="Guess a number from 0 to 6.", left=9)

    def step(self, action: Guess, timeout_s: Any = None, **kwargs: Any) -> Answer:
        self._state.step_count += 1
        right = action.number == self._secret
        words = "Right!" if right else "Higher." if action.number < self._secret else "Lower."
        return Answer(said=words, left=9 - self._state.step_count, reward=float(right), done=right)

    @property
    def state(self) -> State:
        return self._state


def test_one_of_theirs_keeps_the_contract(serve: Callable[[Any], str]) -> None:
    url = serve(create_fastapi_app(Guessing, Guess, Answer, max_concurrent_envs=100))

    def guess(text: str) -> dict[str, int]:
        digits = "".join(c for c in text[:100] if c in "0123456789")
        return {"number": int(digits or -1)}

    made: list[FromOpenEnv] = []

    def make() -> FromOpenEnv:
        made.append(FromOpenEnv(url, to_action=guess, max_steps=9))
        return made[-1]

    env = make()
    observation, _ = env.reset(seed=1)
    assert observation == "said: Guess a number from 0 to 6.\nleft: 9"
    for number in range(7):
        observation, reward, terminated, _, info = env.step(f"I say {number}")
        if terminated:
            break
    assert terminated and info["success"] and reward == 1.0 and "Right!" in observation
    checks = ["determinism", "save_restore", "save_restore_agent", "info_keys", "step_after_end",
              "transitions", "independent_instances", "check_env"]  # fmt: skip
    check_text_env(make, tasks=1, only=checks, time_limit=None).raise_for_failures()
    for one in made:
        one.close()


class Session:
    """A client whose server shows the same fields at every step."""

    def __init__(self, **shown: Any) -> None:
        self.shown = shown

    def sync(self) -> Session:
        return self

    def reset(self, **_: Any) -> Any:
        return SimpleNamespace(observation={"text": "Go.", **self.shown}, reward=None, done=False)

    def step(self, action: Any) -> Any:
        return SimpleNamespace(observation={"text": "On.", **self.shown}, reward=1.0, done=True)


@pytest.mark.parametrize("info", [{"score": 37}, {"score": "3/4", "success": None}, "a text", None])
def test_an_info_of_others_is_theirs(info: Any) -> None:
    """Scores in other units are not ours, and the reward tells success."""
    env = FromOpenEnv("http://nowhere", client=Session(info=info))
    env.reset(seed=0)
    _, _, terminated, _, told = env.step("go")
    assert terminated and told["success"] and told["score"] == 1.0


@pytest.mark.parametrize(
    ("info", "ends"), [({"truncated": True}, (False, True)), ({"truncated": "no"}, (True, False))]
)
def test_an_episode_that_ran_out_of_time_there_did_not_terminate(
    info: Any, ends: tuple[bool, bool]
) -> None:
    env = FromOpenEnv("http://nowhere", client=Session(info=info))
    env.reset(seed=0)
    assert env.step("go")[2:4] == ends


def test_a_given_client_is_not_shared_with_a_copy() -> None:
    env = FromOpenEnv("http://nowhere", client=Session())
    env.reset(seed=0)
    with pytest.raises(TypeError, match="cannot be copied: its client has one session"):
        copy.deepcopy(env)
