"""Pages, moves and rewards of a small shop, worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.envs.webshop.catalogue import Catalogue, Product, compile_catalogue
from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.goals import NO_LIMIT, Goal, count_combinations, synthetic_goal
from paw_gym.envs.webshop.reward import normalize_color, rule_nouns, score_purchase, token_set_ratio
from paw_gym.envs.webshop.shop import Bm25Search, Shop, Visit, parse_action


@pytest.fixture
def shop_of(tmp_path: Path) -> Callable[..., Shop]:
    def made(*products: Product) -> Shop:
        catalogue = Catalogue(compile_catalogue(products, tmp_path / "catalogue"))
        return Shop(catalogue, Bm25Search(catalogue), rule_nouns)

    return made


@pytest.fixture
def shop(shop_of: Callable[..., Shop], make_product: Any) -> Shop:
    return shop_of(*(make_product(f"B{n:09d}", title=f"Ceramic Mug {n}") for n in range(23)))


def show(shop: Shop, visit: Visit) -> Any:
    return shop.show(visit, synthetic_goal(shop.catalogue[0], 0, 9.99, 0))


def walk(shop: Shop, *actions: str) -> tuple[Visit, list[bool]]:
    visit, taken = Visit(), []
    for action in actions:
        moved = shop.act(visit, show(shop, visit), parse_action(action))
        taken.append(moved is not None)
        visit = moved or visit
    return visit, taken


def test_a_whole_purchase(shop: Shop) -> None:
    search = ("search[ceramic mug]", "click[next >]", "click[b000000012]")
    choice = ("click[small]", "click[red]", "click[features]", "click[< prev]", "click[Buy Now]")
    visit, taken = walk(shop, *search, *choice)
    assert all(taken)
    assert visit.options == (("size", "small"), ("color", "red"))
    page = show(shop, visit)
    assert '{"color": "red", "size": "small"}' in page.text() and "[SEP] 1.0 [SEP]" in page.text()
    assert not page.clickables


def test_previous_leads_back_to_the_page_of_results(shop: Shop) -> None:
    visit, _ = walk(
        shop, "search[mug]", "click[next >]", "click[b000000010]", "click[red]", "click[< prev]"
    )
    assert visit == Visit("results", "mug", 2)
    visit, _ = walk(shop, "search[mug]", "click[next >]", "click[< prev]")
    assert visit == Visit("results", "mug", 1)
    visit, _ = walk(shop, "search[mug]", "click[b000000001]", "click[red]", "search[ceramic]")
    assert visit == Visit("results", "ceramic", 1), "a new search forgets product and options"
    visit, taken = walk(shop, "search[mug]", *["click[next >]"] * 4)
    assert all(taken) and visit.number == 5, "next is there on the last page too"
    page = show(shop, visit)
    assert page.text().endswith("Page 5 (Total results: 23) [SEP] < Prev [SEP] Next >")


@pytest.mark.parametrize(
    "action",
    ["click[search]", "click[buy now]", "search[]", "search", "", "buy[mug]", "click[]",
     "search[a\nb]", "Search[mug]", "click[b000000001]"],
)  # fmt: skip
def test_what_the_search_page_refuses(shop: Shop, action: str) -> None:
    visit, taken = walk(shop, action)
    assert visit == Visit() and taken == [False]


def test_a_button_goes_before_an_option_of_its_name(
    shop_of: Callable[..., Shop], make_product: Any
) -> None:
    shop = shop_of(make_product("mug-1a", options=(("style", ("reviews", "plain", "size [m]")),)))
    visit, _ = walk(shop, "search[mug]", "click[mug-1a]", "click[reviews]")
    assert visit.page == "sub" and visit.sub_page == "Reviews"
    visit, taken = walk(shop, "search[mug]", "click[mug-1a]", "click[size [m]]")
    assert all(taken) and visit.options == (("style", "size [m]"),)


@given(st.text("ab[]\n ", max_size=12))
def test_actions_are_read_as_the_originals_pattern_does(text: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", text)
    expected = match.groups() if match else (text, "")
    assert parse_action(text) == expected


def test_reading_takes_linear_time() -> None:
    for text in ("[" * 300_000, "[]" * 300_000, "search[" + "[" * 300_000, "x" * 300_000):
        assert parse_action(text)


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
def test_the_goals_own_purchase_scores_most(data: st.DataObject) -> None:
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
