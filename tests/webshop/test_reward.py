"""The reward against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.goals import NO_LIMIT, Goal, count_combinations, synthetic_goal
from paw_gym.envs.webshop.reward import normalize_color, rule_nouns, score_purchase, token_set_ratio

GOAL = Goal(
    asin="B000000001",
    query="mugs",
    name="Ceramic Mug",
    product_category="Home › Kitchen › Mugs",
    instruction="",
    attributes=("dishwasher safe", "leak proof", "hand painted"),
    options=(("color", "red"), ("size", "large")),
    price_upper=10.0,
)


def test_a_partial_match(make_product: Any) -> None:
    score = score_purchase(make_product(), 12.0, {"size": "large"}, GOAL, rule_nouns)
    assert (score.attributes_matched, score.options_matched, score.price_ok) == (2, 1, False)
    assert score.type_score == 1.0 and score.title_score == 1.0
    assert score.reward == pytest.approx((2 + 1 + 0) / (3 + 2 + 1))
    assert score.parts()["reward"] == score.reward


def test_an_attribute_may_stand_in_the_text(make_product: Any) -> None:
    bare = make_product(attributes=(), description="Hand painted and LEAK PROOF.")
    score = score_purchase(bare, 1.0, {}, GOAL, rule_nouns)
    assert score.attributes_matched == 3


@pytest.mark.parametrize(
    ("title", "query", "path", "expected"),
    [
        ("Ceramic Mug", "cups", "Garden › Tools › Rakes", 1.0),  # the title alone
        ("Garden Rake", "mugs", "Home › Kitchen › Mugs", 0.0),  # no noun in common
        ("Ceramic Rake", "rakes", "Garden › Tools › Rakes", 1.0),  # half of the nouns
    ],
)
def test_the_kind_of_product(
    make_product: Any, title: str, query: str, path: str, expected: float
) -> None:
    bought = make_product(title=title, query=query, product_category=path)
    assert score_purchase(bought, 1.0, {}, GOAL, rule_nouns).type_score == expected


def test_few_shared_nouns(make_product: Any) -> None:
    names = " ".join(f"Noun{chr(97 + i)}" for i in range(19))
    goal = replace(GOAL, name=f"{names} Mug")
    score = score_purchase(make_product(), 1.0, {}, goal, rule_nouns)
    assert score.title_score == 1 / 20 and score.type_score == 0.1
    goal = replace(GOAL, name="Nouna Nounb Nounc Nound Noune Mug", query="x", product_category="y")
    score = score_purchase(make_product(), 1.0, {}, goal, rule_nouns)
    assert score.title_score == 1 / 6 and score.type_score == 0.5


def test_a_goal_without_nouns_counts_as_a_fifth(make_product: Any) -> None:
    goal = replace(GOAL, name="and 12")
    assert score_purchase(make_product(), 1.0, {}, goal, rule_nouns).title_score == 0.2


def test_options_are_compared_with_their_names(make_product: Any) -> None:
    """The original compares a value with the pair; values of people's goals stand alone."""
    named = replace(GOAL, options=(("size", "xx-large"),))
    unnamed = replace(GOAL, options=(("", "xx-large"),))
    for chosen, of_pair, of_value in (("xx-large", 1, 1), ("large", 1, 1), ("3x-large", 0, 1)):
        for goal, expected in ((named, of_pair), (unnamed, of_value)):
            score = score_purchase(make_product(), 1.0, {"size": chosen}, goal, rule_nouns)
            assert score.options_matched == expected, (chosen, goal.options)


def test_colours_are_normalised() -> None:
    assert normalize_color("heather blue") == "blue"  # the first of the list, not of the value
    assert normalize_color("steelivy fuchsia") == "fuchsia"
    assert normalize_color("xl") == "xl"


def test_similarity_is_that_of_thefuzz() -> None:
    assert token_set_ratio("rubber sole", "rubber outsole") == 88
    assert token_set_ratio("3x-large", "xx-large") == 88
    assert token_set_ratio("café au lait", "caf au lait") == 100  # é is dropped first
    assert token_set_ratio("", "red") == 0


PRODUCTS = list(generate_products(200))


@given(st.data())
def test_the_goals_own_purchase_scores_one_and_none_scores_more(data: st.DataObject) -> None:
    product = data.draw(st.sampled_from(PRODUCTS))
    goal = synthetic_goal(
        product, data.draw(st.integers(0, count_combinations(product) - 1)), 5.0, 0
    )
    own = score_purchase(product, 5.0, dict(goal.options), goal, rule_nouns)
    assert own.reward == 1.0 and goal.price_upper in (*range(10, 1000, 10), NO_LIMIT)
    other = data.draw(st.sampled_from(PRODUCTS))
    options = {name: data.draw(st.sampled_from(values)) for name, values in other.options}
    price = data.draw(st.floats(0, 1000))
    assert 0.0 <= score_purchase(other, price, options, goal, rule_nouns).reward <= 1.0
