"""The generated shop, its two shoppers, and the contract."""

from __future__ import annotations

import random

import pytest
from playing import play

from paw_gym import make_agent_env
from paw_gym.envs.webshop.env import WebShopEnv
from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.reward import normalize_color


def shop(env: WebShopEnv, seed: int, slips: float = 0.0) -> float:
    """The score of the reading shopper, whom some other click befalls that often."""
    rng = random.Random(seed)
    env.reset(seed=seed)
    shopper = env.expert()

    def act() -> str:
        action, listed = shopper(), env.list_actions()
        slip = [a for a in listed if a != "click[buy now]"] if rng.random() < slips else [action]
        return rng.choice(slip)

    answers = play(env, act)
    assert slips or all(answer[4]["action_is_valid"] for answer in answers)
    return float(answers[-1][4]["score"])


def test_products_are_made_by_seed() -> None:
    assert list(generate_products(64)) == list(generate_products(64))
    assert list(generate_products(64)) == list(generate_products(96))[:64]
    assert list(generate_products(64)) != list(generate_products(64, seed=8))


def test_products_are_fit_to_be_asked_for() -> None:
    products = list(generate_products(1024))
    assert len({product.asin for product in products}) == 1024
    assert len({product.category for product in products}) >= 6
    assert len({product.title for product in products}) > 1000
    for product in products:
        assert set(product.instruction_attributes) <= set(product.attributes)
        for _, values in product.options:
            for value in values:
                # else the reward would take the value for a colour that it is not
                assert normalize_color(value) in value.split() or normalize_color(value) == value


def test_every_goal_can_be_reached() -> None:
    env = WebShopEnv(split="valid")
    for index in range(0, len(env.tasks), 5):
        env.reset(options={"task_index": index})
        _, reward, terminated, _, info = play(env, env.reference_solution())[-1]
        assert terminated and reward == 1.0 and info["success"]


def test_the_reading_shopper_does_well_and_never_errs() -> None:
    env = WebShopEnv(split="test")
    scores = [shop(env, seed) for seed in range(80)]
    assert sum(score == 1.0 for score in scores) >= 0.8 * len(scores)
    assert sum(scores) / len(scores) > 0.93


def test_the_reading_shopper_finds_back_from_slips() -> None:
    env = WebShopEnv(split="test", max_steps=40)
    assert sum(shop(env, seed, slips=0.2) >= 0.8 for seed in range(60)) >= 48


def test_the_agents_side() -> None:
    env = make_agent_env("paw_gym/WebShop-v0", require_admissible=True)
    prompt, info = env.reset(seed=0)
    assert prompt.count(info["instruction"]) == 1  # the page's own copy is left out
    assert "search[...]" in prompt
    for action, valid in (("search[mug]", True), ("click[nothing]", False)):
        _, reward, _, _, info = env.step(f"<think>x</think><action>{action}</action>")
        assert info["transition"].action_is_valid == valid
        assert reward == pytest.approx(0.0 if valid else -0.1)
