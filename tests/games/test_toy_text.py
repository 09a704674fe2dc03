"""Gymnasium's toy worlds as text: the same dynamics, disjoint splits, solutions and experts."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv, TaxiEnv
from playing import play

from paw_gym import check_text_env
from paw_gym.envs.toy_text import (
    GAMES,
    SPLITS,
    Blackjack,
    ToyTextEnv,
    cliff_walking,
    frozen_lake,
    taxi,
    toy_tasks,
)

KINDS = [
    {"game": "frozen_lake"},
    {"game": "frozen_lake", "slippery": True, "size": 5},
    {"game": "taxi"},
    {"game": "cliff_walking"},
    {"game": "cliff_walking", "slippery": True},
    {"game": "blackjack"},
]
MAP = ("SFFF", "FHFH", "FFFH", "HFFG")


@pytest.mark.parametrize(
    ("game", "kind", "kwargs"),
    [
        (frozen_lake(MAP, False), FrozenLakeEnv, {"is_slippery": False}),
        (frozen_lake(MAP, True), FrozenLakeEnv, {"is_slippery": True}),
        (cliff_walking(False), CliffWalkingEnv, {}),
        (cliff_walking(True), CliffWalkingEnv, {"is_slippery": True}),
        (taxi(), TaxiEnv, {}),
    ],
)
def test_steps_are_those_of_gymnasium(
    game: Any, kind: type[gym.Env], kwargs: dict[str, Any]
) -> None:
    """State, reward and end after random actions, from the same random numbers."""
    theirs = kind(**kwargs)
    choice = np.random.default_rng(0)
    for seed in range(15):
        state, _ = theirs.reset(seed=seed)
        rng = np.random.default_rng(seed + 100)
        theirs.np_random = np.random.default_rng(seed + 100)
        for _ in range(60):
            action = int(choice.integers(len(game.actions)))
            expected = theirs.step(action)[:3]
            step = game.step(state, game.actions[action], rng)
            assert (step.state, step.reward, step.over) == expected
            state = step.state
            if step.over:
                break


def test_a_fall_from_the_cliff_is_said() -> None:
    env = ToyTextEnv("cliff_walking")
    for actions in (["right"], ["up", "right", "down"]):
        env.reset(seed=0, options={"task_index": 0})
        env.unwrapped.state = 36  # the start, at the lower left
        observation, reward, terminated, *_ = play(env, actions)[-1]
        assert reward == -100 and not terminated and env.state == 36
        assert observation.startswith("You fall off the cliff and are back at the start.")


def test_blackjack_is_that_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cards give the same sums, rewards and ends."""
    from gymnasium.envs.toy_text import blackjack

    theirs = gym.make("Blackjack-v1", sab=True).unwrapped
    rng = np.random.default_rng(0)
    for _ in range(150):
        cards = [int(min(card, 10)) for card in rng.integers(1, 14, 48)]
        game = Blackjack(tuple(cards))
        following = iter(cards)
        monkeypatch.setattr(blackjack, "draw_card", lambda _, source=following: next(source))
        theirs.reset()
        state, over = game.start, False
        while not over:
            action = ("stick", "hit")[int(rng.integers(2))]
            (total, shown, ace), reward, over, *_ = theirs.step(int(action == "hit"))
            step = game.step(state, action, None)
            state = step.state
            assert (step.reward, step.over) == (reward, over)
            assert f"({total}{', an ace as 11' if ace else ''})" in game.show(state)
            assert f"The dealer shows {shown}." in game.show(state)


@pytest.mark.parametrize("kwargs", KINDS, ids=lambda kwargs: "_".join(map(str, kwargs.values())))
def test_the_expert_wins_unless_chance_is_against_it(kwargs: dict[str, Any]) -> None:
    env, solved = ToyTextEnv(split="valid", **kwargs), 0
    for seed in range(10):
        env.reset(seed=seed)
        solved += play(env, env.expert())[-1][4]["success"]
    by_chance = "slippery" in kwargs or kwargs["game"] == "blackjack"
    assert solved >= (3 if by_chance else 10)


@pytest.mark.parametrize("game", GAMES)
def test_no_task_is_in_two_splits(game: str) -> None:
    def contents(split: str) -> set[str]:
        tasks = toy_tasks(game, split, 4, False, 150)
        found = set()
        for task_id in tasks.ids:
            world, state = pickle.loads(pickle.dumps(tasks[task_id])).data
            found.add(str(world.deck) if game == "blackjack" else world.show(state))
        return found

    found = [contents(split) for split in SPLITS]
    assert all(found) and len(set.union(*found)) == sum(map(len, found))


def test_words_of_an_episode() -> None:
    env = ToyTextEnv("taxi")
    observation, info = env.reset(seed=0)
    assert "Passenger: at " in observation
    observation, reward, *_, info = env.step("drop off")
    assert reward == -10 and not info["action_is_valid"] and "not possible" in observation
    observation, reward, *_, info = env.step("fly")
    assert reward == 0 and not info["action_is_valid"] and "not an action" in observation

    shown = taxi().show(TaxiEnv().encode(2, 3, 4, 1)).split("\n")
    assert shown[3][7] == "@" and shown[-1] == "Passenger: in the taxi. Destination: G."

    lake = frozen_lake(MAP, False)
    assert lake.show(0).split("\n")[0] == "@FFF"
    assert lake.useful(0) == ["down", "right"]
    fall = lake.step(1, "down", np.random.default_rng(0))
    assert fall.over and not fall.success


@pytest.mark.parametrize(
    "kwargs", KINDS[1:], ids=lambda kwargs: "_".join(map(str, kwargs.values()))
)
def test_the_contract(kwargs: dict[str, Any]) -> None:
    check_text_env("paw_gym/ToyText-v0", time_limit=None, **kwargs).raise_for_failures()
