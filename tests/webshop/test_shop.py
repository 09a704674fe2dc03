"""Pages, actions and moves on a small shop made by hand."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.envs.webshop.catalogue import Catalogue, compile_catalogue
from paw_gym.envs.webshop.goals import Goal
from paw_gym.envs.webshop.pages import ItemPage, ResultsPage
from paw_gym.envs.webshop.reward import rule_nouns
from paw_gym.envs.webshop.search import Bm25Search
from paw_gym.envs.webshop.shop import Shop, Visit, parse_action

GOAL = Goal(
    asin="B000000003",
    query="mugs",
    name="Ceramic Mug",
    product_category="Home › Kitchen › Mugs",
    instruction="Find a mug",
    attributes=("leak proof",),
    options=(("color", "red"),),
    price_upper=20.0,
)


@pytest.fixture
def shop(tmp_path: Path, make_product: Any) -> Shop:
    products = [
        make_product(f"B{number:09d}", title=f"Ceramic Mug {number}") for number in range(23)
    ]
    folder = compile_catalogue(products, tmp_path / "catalogue")
    catalogue = Catalogue(folder)
    return Shop(catalogue, Bm25Search(catalogue), rule_nouns)


def walk(shop: Shop, *actions: str) -> tuple[Visit, list[bool]]:
    visit, taken = Visit(), []
    for action in actions:
        moved = shop.act(visit, shop.show(visit, GOAL), parse_action(action))
        taken.append(moved is not None)
        visit = moved or visit
    return visit, taken


def test_a_whole_purchase(shop: Shop) -> None:
    visit, taken = walk(
        shop,
        "search[ceramic mug]",
        "click[next >]",
        "click[b000000012]",
        "click[large]",
        "click[red]",
        "click[features]",
        "click[< prev]",
        "click[Buy Now]",
    )
    assert all(taken)
    assert visit.options == (("size", "large"), ("color", "red"))
    page = shop.show(visit, GOAL)
    assert '{"color": "red", "size": "large"}' in page.text() and "[SEP] 1.0 [SEP]" in page.text()
    assert not page.clickables


def test_previous_leads_back_to_the_page_of_results(shop: Shop) -> None:
    visit, _ = walk(
        shop, "search[mug]", "click[next >]", "click[b000000010]", "click[red]", "click[< prev]"
    )
    assert visit == Visit("results", "mug", 2)
    visit, _ = walk(shop, "search[mug]", "click[next >]", "click[< prev]")
    assert visit == Visit("results", "mug", 1)


def test_next_is_there_on_the_last_page_too(shop: Shop) -> None:
    visit, taken = walk(shop, "search[mug]", *["click[next >]"] * 4)
    assert all(taken) and visit.number == 5
    page = shop.show(visit, GOAL)
    assert isinstance(page, ResultsPage) and not page.products and not page.has_next
    assert page.text().endswith("Page 5 (Total results: 23) [SEP] < Prev [SEP] Next >")


def test_equal_scores_are_ordered_by_asin(shop: Shop) -> None:
    assert [shop.catalogue[n].asin for n in shop.hits("ceramic")] == [
        f"B{number:09d}" for number in range(23)
    ]


def test_searching_anew_forgets_product_and_options(shop: Shop) -> None:
    visit, _ = walk(shop, "search[mug]", "click[b000000001]", "click[red]", "search[ceramic]")
    assert visit == Visit("results", "ceramic", 1)


@pytest.mark.parametrize(
    "action",
    ["click[search]", "click[buy now]", "search[]", "search", "", "buy[mug]", "click[]",
     "search[a\nb]", "Search[mug]", "click[b000000001]"],
)  # fmt: skip
def test_what_the_search_page_refuses(shop: Shop, action: str) -> None:
    visit, taken = walk(shop, action)
    assert visit == Visit() and taken == [False]


def test_a_button_goes_before_an_option_of_its_name(tmp_path: Path, make_product: Any) -> None:
    odd = make_product("B000000001", options=(("style", ("reviews", "plain", "size [m]")),))
    catalogue = Catalogue(compile_catalogue([odd], tmp_path / "catalogue"))
    shop = Shop(catalogue, Bm25Search(catalogue), rule_nouns)
    visit, _ = walk(shop, "search[mug]", "click[b000000001]", "click[reviews]")
    assert visit.page == "sub" and visit.sub_page == "Reviews"
    visit, taken = walk(shop, "search[mug]", "click[b000000001]", "click[size [m]]")
    assert all(taken) and visit.options == (("style", "size [m]"),)


def test_of_two_options_with_the_same_value_the_later_one_is_meant(make_product: Any) -> None:
    page = ItemPage("x", make_product(options=(("color", ("one", "two")), ("kind", ("one",)))))
    assert list(page.clickables)[-2:] == ["one", "two"]
    assert page.clickables["one"].name == "kind"


@given(st.text("ab[]\n ", max_size=12))
def test_actions_are_read_as_the_originals_pattern_does(text: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", text)
    expected = match.groups() if match else (text, "")
    assert parse_action(text) == expected


def test_reading_takes_linear_time() -> None:
    for text in ("[" * 300_000, "[]" * 300_000, "search[" + "[" * 300_000, "x" * 300_000):
        assert parse_action(text)


def test_an_asin_may_have_lower_case(tmp_path: Path, make_product: Any) -> None:
    folder = compile_catalogue([make_product("mug-1a")], tmp_path / "catalogue")
    catalogue = Catalogue(folder)
    shop = Shop(catalogue, Bm25Search(catalogue), rule_nouns)
    visit, taken = walk(shop, "search[mug]", "click[mug-1a]")
    assert all(taken) and visit.page == "item"


def test_searches_from_several_threads_do_not_fail(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paw_gym.envs.webshop.shop._KEPT_SEARCHES", 4)
    monkeypatch.setattr(shop.engine, "search", lambda query, limit: [1])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(shop.hits, (f"mug {n}" for n in range(40_000))))
    finally:
        sys.setswitchinterval(interval)
    assert found == [(1,)] * 40_000
