"""Environments of Gymnasium with discrete actions as ours."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import paw_gym
from paw_gym.adapters.gymnasium import FromGymnasium

CLIFF = ["up", "right", "down", "left"]


def place(env: Any, observation: Any) -> str:
    """The cell of the cliff that the agent stands on."""
    return f"You are in row {observation // 12}, column {observation % 12}."


def reached(total_reward: float) -> bool:
    return total_reward > -100


class Cliff(FromGymnasium):
    def __init__(self, **kwargs: Any) -> None:
        walk = ("CliffWalking-v1", place, CLIFF, "Walk to row 3, column 11.")
        super().__init__(*walk, succeeded=reached, **kwargs)


def test_an_episode() -> None:
    env = Cliff(split="test")
    observation, info = env.reset(seed=0)
    assert observation == "You are in row 3, column 0."
    assert info["admissible_actions"] == CLIFF and info["instruction"].startswith("Walk")
    observation, reward, terminated, _, info = env.step("jump")  # takes no turn
    assert observation == "There is no action 'jump' here." and reward == 0 and not terminated
    assert not info["action_is_valid"]
    for action in ["up", *["right"] * 11]:
        _, reward, *_ = env.step(action)
        assert reward == -1
    observation, _, terminated, _, info = env.step("down")
    assert observation == "You are in row 3, column 11." and terminated and info["success"]


def lake(env: Any, observation: Any) -> str:
    return f"cell {observation}"


def only_right(env: Any) -> list[int]:
    return [2]


def slippery_lake(**kwargs: Any) -> FromGymnasium:
    names = ["left", "down", "right", "up"]
    return FromGymnasium("FrozenLake-v1", lake, names, "Cross.", is_slippery=True, **kwargs)


class Clocked(gym.Env[int, int]):
    """Ends after four steps by its own clock; action 1 ends it by its rules."""

    observation_space = gym.spaces.Discrete(5)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.time, 1.0, action == 1, self.time >= 4, {}


gym.register("tests/Clocked-v0", entry_point=Clocked)
clocked = partial(
    FromGymnasium, "tests/Clocked-v0", lambda _, o: f"It is {o}.", ["wait", "stop"], "Wait."
)


def test_an_end_by_its_own_clock_is_a_truncation() -> None:
    env = clocked()
    env.reset(seed=0)
    *early, last = [env.step("wait") for _ in range(4)]
    assert [answer[2:4] for answer in early] == [(False, False)] * 3
    assert last[2:4] == (False, True) and last[4]["success"]
    assert last[4]["admissible_actions"] == []
    with pytest.raises(RuntimeError, match="The episode is over"):
        env.step("wait")
    env.reset(seed=0)
    [env.step("wait") for _ in range(3)]
    assert env.step("stop")[2:4] == (True, False)  # the rules' end counts
    checks = ["truncation", "step_after_end", "save_restore", "save_restore_agent"]
    paw_gym.check_text_env(clocked, tasks=2, only=checks, time_limit=None).raise_for_failures()


def test_possible_actions() -> None:
    env = slippery_lake(possible=only_right)
    _, info = env.reset(seed=0)
    assert info["admissible_actions"] == ["right"]
    assert not env.step("left")[4]["action_is_valid"]


CHANCE = ["determinism", "save_restore", "copies"]


class SolvedCliff(Cliff):
    def reference_solution(self) -> list[str]:
        return ["up", *["right"] * 11, "down"][self._steps :]


@pytest.mark.parametrize(("make", "checks"), [(SolvedCliff, None), (slippery_lake, CHANCE)])
def test_the_contract(make: Any, checks: Any) -> None:
    paw_gym.check_text_env(make, tasks=2, only=checks, time_limit=None).raise_for_failures()


def test_a_solution_of_ones_own_makes_an_expert() -> None:
    env = SolvedCliff()
    env.reset(seed=0)
    assert env.expert()() == "up"


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="CliffWalking-v1 has 4 actions; expected a different"):
        FromGymnasium("CliffWalking-v1", place, ["up", "down"], "Walk.")
    with pytest.raises(ValueError, match="Pendulum-v1 has the action space Box"):
        FromGymnasium("Pendulum-v1", place, ["left"], "Swing.")


class Corridor(gym.Env[Any, Any]):
    """One of nobody's toy worlds: its ``P`` is an array, its arguments are anything."""

    def __init__(self, **kwargs: Any) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
        self.P, self.s = np.full((3, 2, 3), 1 / 3), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}


gym.register("tests/Corridor-v0", entry_point=Corridor)


def corridor(**kwargs: Any) -> FromGymnasium:
    return FromGymnasium("tests/Corridor-v0", lake, ["left", "right"], "Go.", **kwargs)


def test_tasks_with_any_arguments_are_the_same_in_every_process() -> None:
    for start in (place, np.zeros((2, 2)), "S F\nF G", "../maps"):
        first, again = corridor(start=start).tasks, corridor(start=copy.deepcopy(start)).tasks
        assert first.ids[0] == again.ids[0] and first[0].data == again[0].data
        assert " at 0x" not in first.ids[0]
    large = [corridor(start=np.full(2000, number)).tasks for number in (0, 1)]
    assert large[0].fingerprint != large[1].fingerprint
    shown = corridor(start=["SF", 2]).tasks.ids[0]  # what an id can show stays in it as it is
    assert shown.startswith("gymnasium/tests/Corridor-v0,start=['SF', 2]/train/")
    with pytest.raises(ValueError, match="argument start of tests/Corridor-v0 .* lies in memory"):
        corridor(start=object())
