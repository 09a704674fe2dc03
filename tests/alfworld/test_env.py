"""The environment around the engines."""

from __future__ import annotations

import gymnasium as gym
import pytest

from paw_gym import make_agent_env


def test_the_prompt_does_not_repeat_banner_and_task() -> None:
    env = make_agent_env("paw_gym/ALFWorld-v0", split="valid_seen")
    prompt, info = env.reset(seed=0)
    assert "TextWorld" not in prompt
    assert prompt.count(info["instruction"]) == 1
    assert "help" not in info["admissible_actions"]
    for response in env.reference_solution():
        _, reward, terminated, _, info = env.step(response)
    assert (terminated, reward, info["success"]) == (True, 10.0, True)
    assert info["transition"].next_observation


@pytest.mark.usefixtures("original_engine")
def test_the_original_engine_plays_procedural_games_through_the_same_environment() -> None:
    envs = [
        gym.make("paw_gym/ALFWorld-v0", split="valid_seen", engine=engine).unwrapped
        for engine in ("native", "textworld")
    ]
    native, original = envs
    assert native.reset(seed=5) == original.reset(seed=5)
    first, *rest = native.reference_solution()
    assert native.step(first) == original.step(first)
    assert original.reference_solution() == native.reference_solution()
    state = original.save_state()
    for action in ["go nowhere", *rest]:
        answers = [env.step(action) for env in envs]
        assert answers[0] == answers[1]
    assert answers[1][2]
    original.restore_state(state)
    for action in rest:
        *_, info = original.step(action)
    assert info["success"]
