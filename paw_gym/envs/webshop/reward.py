"""WebShop's reward: how well a purchase fits the goal (Yao et al. 2022, section 3, and their program)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from paw_gym.envs.webshop.goals import Goal
from paw_gym.envs.webshop.nouns import Nouns
from paw_gym.envs.webshop.records import Product

FUZZY_MATCH = 85
"""a token-set ratio (0 to 100, rounded) above this is a match"""
_LATIN_1 = dict.fromkeys(range(128, 256))
"""characters that the original's string matching removes first"""

_COLORS_TEXT = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy
camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral
cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass
gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon
mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter
pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone
stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLORS_TEXT.split())
"""in the order in which a value is searched for them; the first one counts"""


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of a purchase, and what it is made of."""

    reward: float
    """``type_score * (attributes + options + price) / (goal's attributes + goal's options + 1)``"""
    type_score: float
    """1, 0.5, 0.1 or 0: is it the kind of product that was asked for"""
    query_match: bool
    category_match: bool
    title_score: float
    """share of the goal title's nouns that the product's title has"""
    attributes_matched: int
    attributes_wanted: int
    options_matched: int
    options_wanted: int
    price_ok: bool

    def parts(self) -> dict[str, Any]:
        """Plain values for ``info``."""
        return {name: getattr(self, name) for name in self.__slots__}


def score_purchase(
    product: Product,
    price: float,
    options: Mapping[str, str],
    goal: Goal,
    nouns: Nouns,
) -> Score:
    """Scores a purchase.

    Args:
        product: what was bought.
        price: its price in dollars.
        options: the chosen values by option name.
        goal: what was asked for.
        nouns: finds the nouns of titles.
    """
    type_score, query_match, category_match, title_score = _type_score(product, goal, nouns)
    texts = (
        product.title.lower(),
        " ".join(product.features).lower(),
        product.description.lower(),
    )
    attributes = sum(_has_attribute(product, texts, wanted) for wanted in goal.attributes)
    matched = _options_matched(options.values(), goal.options)
    price_ok = price <= goal.price_upper
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Score(
        reward=(attributes + matched + price_ok) / wanted * type_score,
        type_score=type_score,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        attributes_matched=attributes,
        attributes_wanted=len(goal.attributes),
        options_matched=matched,
        options_wanted=len(goal.options),
        price_ok=price_ok,
    )


def _type_score(product: Product, goal: Goal, nouns: Nouns) -> tuple[float, bool, bool, float]:
    query_match = product.query == goal.query
    category_match = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    wanted = nouns(goal.name)
    shared = len(set(nouns(product.title)) & set(wanted))
    title_score = shared / len(wanted) if wanted else 0.2
    if title_score == 0.0:
        return 0.0, query_match, category_match, title_score
    if title_score < 0.1:
        return 0.1, query_match, category_match, title_score
    matches = query_match or category_match or title_score > 0.2
    return 1.0 if matches else 0.5, query_match, category_match, title_score


def _levels(path: str) -> set[str]:
    return {level.strip() for level in path.split("›")}


def _has_attribute(product: Product, texts: Sequence[str], wanted: str) -> bool:
    if any(token_set_ratio(own, wanted) > FUZZY_MATCH for own in product.attributes):
        return True
    return any(wanted in text for text in texts)


def _options_matched(chosen: Iterable[str], wanted: Iterable[tuple[str, str]]) -> int:
    """How many of the wanted options any chosen value resembles, whatever it is an option of."""
    values = [normalize_color(value) for value in chosen]
    return sum(
        any(token_set_ratio(value, target) > FUZZY_MATCH for value in values)
        for target in (_target(*option) for option in wanted)
    )


def _target(name: str, value: str) -> str:
    """The text that a chosen value is compared with.

    The original hands named options over as (name, value) pairs. So the name's words take part in
    the comparison, and a colour is normalised only where it is the whole value.
    """
    if not name:
        return normalize_color(value)
    pair = (name, value)
    return next((color for color in COLORS if color in pair), str(pair))


def normalize_color(value: str) -> str:
    """The first known colour in a value, or the value itself.

    >>> normalize_color("dark heather grey"), normalize_color("large")
    ('dark', 'large')
    """
    return next((color for color in COLORS if color in value), value)


def token_set_ratio(left: str, right: str) -> int:
    """Similarity of two strings' sets of words, 0 to 100, as ``thefuzz`` has it."""
    left, right = left.translate(_LATIN_1), right.translate(_LATIN_1)
    return round(fuzz.token_set_ratio(left, right, processor=default_process))
