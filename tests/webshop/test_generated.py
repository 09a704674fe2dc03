"""The generated shop, its two shoppers, and the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paw_gym import check_text_env, make_agent_env
from paw_gym.envs.webshop.env import WebShopEnv
from paw_gym.envs.webshop.expert import Wish
from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.reward import normalize_color


def play(env: WebShopEnv) -> dict[str, Any]:
    shopper = env.expert()
    while True:
        _, _, terminated, truncated, info = env.step(shopper())
        assert info["action_is_valid"]
        if terminated or truncated:
            return dict(info)


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
        for action in env.reference_solution():
            _, reward, terminated, _, info = env.step(action)
        assert terminated and reward == 1.0 and info["success"]


def test_the_reading_shopper_does_well_and_never_errs() -> None:
    env = WebShopEnv(split="test")
    scores = []
    for seed in range(80):
        env.reset(seed=seed)
        scores.append(play(env)["score"])
    assert sum(score == 1.0 for score in scores) >= 0.8 * len(scores)
    assert sum(scores) / len(scores) > 0.93


def test_the_reading_shopper_finds_back_from_slips() -> None:
    env = WebShopEnv(split="test", max_steps=40)
    import random

    rng, good = random.Random(3), 0
    for seed in range(60):
        _, info = env.reset(seed=seed)
        shopper, over = env.expert(), False
        while not over:
            action = shopper()
            listed = [a for a in info["admissible_actions"] if a != "click[buy now]"]
            if rng.random() < 0.2:
                action = rng.choice(listed)
            _, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        good += reward >= 0.8
    assert good >= 48


def test_the_reading_shopper_works_on_real_products(official_shop: Path) -> None:
    env = WebShopEnv(data_dir=official_shop, nouns="rules")
    scores = []
    for seed in range(40):
        env.reset(seed=seed)
        scores.append(play(env)["score"])
    assert sum(scores) / len(scores) > 0.5


def test_reading_an_instruction() -> None:
    wish = Wish(
        "I want to buy leak proof mugs with lids with color: red, and pack size: 2, and size: a, b, "
        "and price lower than 30.00 dollars"
    )
    assert wish.limit == 30.0 and wish.options == ["red", "2", "a, b"]
    assert wish.words == ["leak", "proof", "mugs", "lids"]
    assert Wish("a mug").options == [] and Wish("a mug").limit > 1e5


def test_the_contract_on_real_products(official_shop: Path) -> None:
    check_text_env(
        "paw_gym/WebShop-v0",
        tasks=3,
        seed=3,
        data_dir=official_shop,
        nouns="rules",
        time_limit=None,
    ).raise_for_failures()


def test_the_agents_side() -> None:
    env = make_agent_env("paw_gym/WebShop-v0", require_admissible=True)
    prompt, info = env.reset(seed=0)
    assert info["instruction"] in prompt and "search[...]" in prompt
    assert prompt.count(info["instruction"]) == 1  # the page's own copy is left out
    _, reward, _, _, info = env.step("<think>x</think><action>search[mug]</action>")
    assert info["transition"].action_is_valid and reward == 0.0
    _, reward, _, _, info = env.step("<think>x</think><action>click[nothing]</action>")
    assert not info["transition"].action_is_valid and reward == pytest.approx(-0.1)
    env.reset(seed=0)
    for response in env.reference_solution():
        _, reward, terminated, _, info = env.step(response)
    assert terminated and reward == 10.0 and info["transition"].info["env_reward"] == 1.0
