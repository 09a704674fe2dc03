"""``gymnasium.make_vec`` in its default way, in one process and in several."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from paw_gym import AgentInterface, Outcome, Task
from paw_gym.functional import GeneratorEnv

LONG = "é🙂\ud800\n" * 30_000


def echo(task: Task, rng: Any) -> Any:
    """Repeat what is said."""
    said = yield Outcome(task.instruction)
    while True:
        said = yield Outcome(said)


def make_echo() -> GeneratorEnv:
    return GeneratorEnv(echo, [Task("a", "Say something.")], max_steps=3)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_environment_shows_what_one_alone_shows(
    own_env: tuple[str, dict[str, Any]], mode: str
) -> None:
    env_id, kwargs = own_env
    vector = gym.make_vec(env_id, 2, vectorization_mode=mode, **kwargs)
    alone = [gym.make(env_id, **kwargs) for _ in range(2)]
    try:
        observations, _ = vector.reset(seed=7)
        assert list(observations) == [env.reset(seed=7 + i)[0] for i, env in enumerate(alone)]
        assert vector.observation_space.contains(observations)
        actions = ("look", "inventory")
        answers = [env.step(action) for env, action in zip(alone, actions, strict=True)]
        observations, rewards, *_ = vector.step(actions)
        assert list(observations) == [answer[0] for answer in answers]
        assert list(rewards) == [answer[1] for answer in answers]
    finally:
        vector.close()


def test_any_text_comes_through_and_an_episode_ends() -> None:
    vector = gym.vector.AsyncVectorEnv([make_echo] * 2)
    try:
        first, _ = vector.reset(seed=0)
        seen = [vector.step(texts)[0] for texts in ((LONG, ""), ("short", LONG), ("a", "b"))]
        assert seen == [(LONG, ""), ("short", LONG), ("a", "b")]
        assert first == ("Say something.",) * 2, "what was given before stays as it was"
        again, _, _, truncated, _ = vector.step(("c", "d"))  # a new episode
        assert again == first and not truncated.any()
    finally:
        vector.close()


def test_without_copies_the_observations_are_those_of_now() -> None:
    vector = gym.vector.AsyncVectorEnv([make_echo] * 2, copy=False)
    try:
        seen, _ = vector.reset(seed=0)
        vector.step(("a", "b"))
        assert (list(seen), len(seen), seen[-1], seen[:1]) == (["a", "b"], 2, "b", ("a",))
        with pytest.raises(IndexError):
            seen[2]
    finally:
        vector.close()


def test_agents_in_processes(box_env: Any) -> None:
    def make() -> AgentInterface:
        return AgentInterface(box_env())

    vector = gym.vector.AsyncVectorEnv([make] * 2)
    try:
        prompts, _ = vector.reset(seed=4)
        alone = make()
        assert prompts[0] == alone.reset(seed=4)[0]
        response = alone.response_for("look")
        assert vector.step((response, response))[0][0] == alone.step(response)[0]
    finally:
        vector.close()


def test_shared_memory_is_given_back() -> None:
    from multiprocessing.shared_memory import SharedMemory

    from paw_gym.spaces import TextMemory, UnicodeText

    memory = TextMemory(UnicodeText(100), 3)
    memory.write(2, "text")
    assert [memory.read(i) for i in range(3)] == ["", "", "text"]
    name = memory.block.name
    del memory
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)
