"""Goals, prices and splits: seeded, disjoint, and the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import said

from paw_gym.envs.webshop.env import WebShopEnv
from paw_gym.envs.webshop.goals import (
    LIMITS,
    NO_LIMIT,
    SPLITS,
    Goal,
    count_combinations,
    human_goal,
    sample_limit,
    sample_price,
    seeded,
    split_of,
    synthetic_goal,
)
from paw_gym.envs.webshop.reward import spacy_model

_IDS = """
import hashlib, json
from paw_gym.envs.webshop.env import WebShopEnv
out = {}
for split in ("train", "valid", "test"):
    tasks = WebShopEnv(split=split).tasks
    ids = hashlib.sha256("\\n".join(tasks.ids).encode()).hexdigest()
    out[split] = [ids, tasks.fingerprint, tasks[len(tasks) // 2].instruction]
print(json.dumps(out))
"""


def test_splits_are_disjoint_by_product_and_cover_all() -> None:
    sets = [WebShopEnv(split=split).tasks for split in SPLITS]
    products = [{task_id.split("/")[1] for task_id in tasks.ids} for tasks in sets]
    assert sum(map(len, products)) == len(set.union(*products)) == 1024
    for found, share in zip(products, SPLITS.values(), strict=True):
        assert len(found) / 1024 == pytest.approx(share, abs=0.05)
    assert len({tasks.fingerprint for tasks in sets}) == 3


def test_splits_are_the_same_with_other_hash_seeds() -> None:
    assert len({said("-c", _IDS, PYTHONHASHSEED=seed) for seed in ("0", "4242")}) == 1
    # fixed for good: a change moves goals from one split to another
    assert split_of("B0743JKHBV") == "train" and split_of("RJK0004") == "train"


def test_prices_of_ranges_are_drawn_by_seed(make_product: Any) -> None:
    ranged = make_product(prices=(10.0, 20.0))
    assert sample_price(ranged, 0) == sample_price(ranged, 0) != sample_price(ranged, 1)
    assert 10.0 <= sample_price(ranged, 3) <= 20.0
    assert sample_price(make_product(), 5) == 9.99


@given(st.floats(0, 2000), st.integers(0, 99))
def test_limits_are_among_the_next_four_above_the_price(price: float, seed: int) -> None:
    limit, words = sample_limit(price, seeded("x", seed))
    above = [value for value in LIMITS if value > price][:4]
    if len(above) < 2:
        assert (limit, words) == (NO_LIMIT, "")
    else:
        assert limit in above[1:]
        assert words == f", and price lower than {limit:.2f} dollars"


def test_synthetic_goals_name_every_choice_of_options(make_product: Any) -> None:
    product = make_product()
    goals = [synthetic_goal(product, n, 9.99, 0) for n in range(count_combinations(product))]
    expected = [(color, size) for color in ("red", "green") for size in ("small", "large")]
    assert [tuple(value for _, value in goal.options) for goal in goals] == expected
    assert goals[1].instruction.startswith(
        "I want mugs that are dishwasher safe with color: red, and size: large, and price lower than "
    )
    assert count_combinations(make_product(options=())) == 1
    assert count_combinations(make_product(instruction=None)) == 0


def test_human_goals(make_product: Any) -> None:
    entry = {
        "instruction": "get me a red mug.",
        "instruction_attributes": ["leak proof"],
        "instruction_options": ["red"],
    }
    goal = human_goal(make_product(), entry, 0, 9.99, 0)
    assert goal.instruction.startswith("get me a red mug, and price lower than ")
    assert goal.options == (("", "red"),) and goal.attributes == ("leak proof",)
    assert Goal.from_original(goal.to_original()) == goal


def test_goals_go_to_the_originals_form_and_back(recorded: dict[str, Any]) -> None:
    for episode in recorded["episodes"]:
        goal = Goal.from_original(episode["goal"])
        expected = {name: value for name, value in episode["goal"].items() if name != "weight"}
        assert goal.to_original() == expected


def test_synthetic_goals_are_the_originals(official_shop: Path, recorded: dict[str, Any]) -> None:
    """Instruction without its price, attributes and options."""
    env = WebShopEnv(data_dir=official_shop, prices=recorded["prices"], nouns="rules")
    catalogue = env.shop.catalogue
    assert sum(count_combinations(product) for product in catalogue) == 6910
    for episode in recorded["episodes"]:
        theirs = episode["goal"]
        product = catalogue.by_asin(theirs["asin"])
        price = recorded["prices"][theirs["asin"]]
        ours = [
            synthetic_goal(product, n, price, 0).to_original()
            for n in range(count_combinations(product))
        ]
        match = next(goal for goal in ours if goal["goal_options"] == theirs["goal_options"])
        for name in ("attributes", "name", "query", "product_category", "category"):
            assert match[name] == theirs[name]
        head = theirs["instruction_text"].partition(", and price")[0]
        assert match["instruction_text"].partition(", and price")[0] == head


def given_goal(**changes: Any) -> dict[str, Any]:
    goal = {
        "asin": "RJK0000", "query": "rain jackets", "name": "Rain Jacket",
        "product_category": "Clothing", "instruction_text": "Find a rain jacket",
        "attributes": ["light weight"], "goal_options": {"color": "navy"}, "price_upper": 100.0,
    }  # fmt: skip
    return {**goal, **changes}


def test_given_goals_become_tasks_in_order(tmp_path: Path) -> None:
    goals = [given_goal(instruction_text=f"Goal number {n}") for n in range(3)]
    path = tmp_path / "goals.json"
    path.write_text(json.dumps(goals))
    prints = set()
    for form in (goals, json.dumps(goals), path, str(path)):
        tasks = WebShopEnv(goals=form).tasks
        assert tasks.ids == ["goal/0", "goal/1", "goal/2"]
        assert tasks["goal/2"].instruction == "Goal number 2"
        prints.add(tasks.fingerprint)
    assert len(prints) == 1
    other = WebShopEnv(goals=[given_goal()]).tasks
    assert other.fingerprint not in prints


def test_given_prices_are_the_same_wherever_their_file_lies(tmp_path: Path) -> None:
    prices = {p.asin: 10.0 for p in WebShopEnv(num_products=50).shop.catalogue}
    first, second = tmp_path / "prices.json", tmp_path / "moved.json"
    for path in (first, second):
        path.write_text(json.dumps(prices))
    turned = dict(reversed(prices.items()))
    forms = (prices, turned, json.dumps(prices), first, str(second))
    prints = {WebShopEnv(num_products=50, prices=form).tasks.fingerprint for form in forms}
    assert len(prints) == 1
    dearer = {**prices, min(prices): 11.0}
    for other in (dearer, None):
        assert WebShopEnv(num_products=50, prices=other).tasks.fingerprint not in prints


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"goals": "syntetic"}, "synthetic"),
        ({"goals": "human"}, "data_dir"),
        ({"goals": [{"asin": "x"}]}, "query"),
        ({"goals": '{"a": 1}'}, "list of goals"),
        ({"goals": [given_goal(attributes="soft")]}, "number 0: .* attributes is 'soft'"),
        ({"goals": [given_goal(goal_options="red")]}, "number 0: .* goal_options is 'red'"),
        ({"goals": [given_goal(name=None)]}, "number 0: .* name is None"),
        ({"goals": [given_goal(price_upper="ten")]}, "number 0: .* price_upper is 'ten'"),
        ({"goals": [given_goal(price_upper=float("nan"))]}, "number 0: .* price_upper is nan"),
        ({"prices": {"RJK0000": True}}, "'RJK0000' is True, expected dollars"),
        ({"goals": "[1, 2"}, "not valid JSON"),
        ({"goals": "/no/such/file.json"}, "no file"),
        ({"goals": "a red mug " * 100}, "no file 'a red mug"),
        ({"prices": "~nobody/prices.json"}, "no file '~nobody"),
        ({"data_dir": "~nobody/webshop"}, "paw data download webshop"),
        ({"prices": [1.0]}, "asin -> dollars"),
        ({"split": "valid_seen"}, "valid"),
        ({"search": "lucine"}, "lucene"),
        ({"nouns": "spicy"}, "spacy"),
        ({"num_products": 0}, "num_products"),
        ({"data_dir": "/no/such/folder"}, "paw data download webshop"),
        ({"token": "x"}, "server"),
        ({"server": "localhost:8000"}, "http://"),
        ({"server": "http://127.0.0.1:9", "data_dir": "x"}, "paw serve webshop"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        WebShopEnv(**settings)


def test_the_fingerprint_says_how_nouns_are_found() -> None:
    if spacy_model() is None:
        pytest.skip("spaCy or its small English model is not installed (extra webshop)")
    prints = [WebShopEnv(nouns=nouns).tasks.fingerprint for nouns in (None, "rules", "spacy")]
    assert prints[0] == prints[1] != prints[2]


def test_a_missing_price_is_named() -> None:
    shop = WebShopEnv(prices={"RJK0000": 5.0}).shop
    assert shop.price("RJK0000") == 5.0
    with pytest.raises(ValueError, match="RJK0001"):
        shop.price("RJK0001")
