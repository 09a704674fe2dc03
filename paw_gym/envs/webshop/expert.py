"""Two shoppers that need no model: one that knows the goal's product, and one that only reads the pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from paw_gym.envs.webshop.goals import NO_LIMIT, Goal
from paw_gym.envs.webshop.pages import PAGE_SIZE, SEPARATOR
from paw_gym.envs.webshop.shop import RESULTS, SEARCH_ACTION, Shop

_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars\.?$")
_OPTION = re.compile(r"(?:^|, and )([a-z][a-z ]*): ")
_CHOICES = re.compile(r" with (?=(?:(?! with )[a-z ])+: )")
"""the beginning of the list of options"""
_WORD = re.compile(r"[a-z0-9]+")
_DOLLARS = re.compile(r"\$([\d.]+)")
_FILLER_TEXT = """
a an and are as at be buy for find from get have i in is it like looking me my need of on or order
please should that the to want we with would am someone us who can
"""
_FILLER = frozenset(_FILLER_TEXT.split())
_LOOKS = 4
"""most products that the reading shopper opens"""


def solve(shop: Shop, goal: Goal) -> list[str]:
    """A way to the goal's product and through its options."""
    product = shop.catalogue.by_asin(goal.asin)
    number = shop.catalogue.number_of(goal.asin)
    for words in (goal.query, product.title, f"{product.title} {goal.query}", goal.instruction):
        words = words.replace("[", " ").replace("]", " ").lower()
        hits = shop.hits(words)
        if number in hits[: RESULTS if len(hits) > 1 else 1]:
            pages = hits.index(number) // PAGE_SIZE
            found = [f"search[{words}]", *["click[next >]"] * pages]
            bought = [f"click[{value}]" for _, value in goal.options]
            return [*found, f"click[{goal.asin.lower()}]", *bought, "click[buy now]"]
    raise RuntimeError(f"No search brings up product {goal.asin!r}.")


class Shopper:
    """Searches for the instruction's words, opens the likeliest products, buys one that has the options. It
    looks at the page and at what was chosen, so it finds its way back from others' actions."""

    def __init__(self, instruction: str) -> None:
        text = instruction.strip()
        price = _PRICE.search(text)
        self._limit = float(price[1]) if price else NO_LIMIT
        text = _PRICE.sub("", text)
        found = _CHOICES.search(text)
        head, options = (text[: found.start()], text[found.end() :]) if found else (text, "")
        self._options = [value.strip() for value in _OPTION.split(options)[2::2]]
        """values to choose"""
        self._words = [word for word in _WORD.findall(head.lower()) if word not in _FILLER]
        """words for the product"""
        self._rejected: set[str] = set()
        self._target: tuple[str, str] | None = None
        """asin and title of the product to open or to buy"""

    def act(self, observation: str, admissible: Sequence[str], chosen: Collection[str]) -> str:
        """The next action."""
        clicks, parts = set(admissible), observation.split(SEPARATOR)
        if SEARCH_ACTION in clicks:
            return f"search[{' '.join(self._words)}]"
        if "click[buy now]" in clicks:
            return self._on_product(parts, clicks, chosen)
        if not any(part.startswith("Page ") for part in parts):
            return "click[< prev]"  # a sub-page
        return self._on_results(parts, clicks)

    def _on_product(self, parts: list[str], clicks: set[str], chosen: Collection[str]) -> str:
        if self._target is None or self._target[1] not in parts:
            return "click[< prev]"
        lacking = [value for value in self._options if f"click[{value}]" not in clicks]
        if lacking and len(self._rejected) < _LOOKS - 1:
            self._rejected.add(self._target[0])
            return "click[< prev]"
        left = [value for value in self._options if value not in {*lacking, *chosen}]
        return f"click[{left[0]}]" if left else "click[buy now]"

    def _on_results(self, parts: list[str], clicks: set[str]) -> str:
        offers = [
            (part, parts[place + 1], " ".join(parts[place + 1 : place + 3]))
            for place, part in enumerate(parts[:-2])
            if f"click[{part.lower()}]" in clicks and part == part.upper()
        ]
        if not offers:
            return "click[back to search]"
        fresh = [offer for offer in offers if offer[0] not in self._rejected] or offers
        best = max(fresh, key=lambda offer: self._fit(offer[2]))
        self._target = best[:2]
        return f"click[{best[0].lower()}]"

    def _fit(self, shown: str) -> float:
        """How many of the wanted words a result shows, less if it costs too much."""
        words = set(_WORD.findall(shown.lower()))
        prices = [float(price) for price in _DOLLARS.findall(shown)]
        too_dear = bool(prices) and max(prices) > self._limit
        return sum(word in words for word in set(self._words)) - 10.0 * too_dear
