"""The shop that needs no download: products made by seed from a small assortment.

Titles, texts and instructions are the project's own. Titles identify what an instruction asks for
most of the time, not always: some attributes appear only on a product's pages.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from paw_gym.envs.webshop.catalogue import FORMAT, Catalogue, Product
from paw_gym.envs.webshop.data_folder import cached_catalogue
from paw_gym.envs.webshop.goals import seeded
from paw_gym.generated import require_in

SEED = 7
"""for the catalogue that is used when no other is asked for"""
NUM_PRODUCTS = 1024
GENERATOR = 1
"""raised when the generator gives other products from the same assortment"""
_ASK_FOR = (2, 3)
"""how many attributes an instruction names"""

_WISHES = (
    "I am looking for {is_}{query}{has}",
    "I would like to order {is_}{query}{has}",
    "Please get me {is_}{query}{has}",
    "I want to buy {is_}{query}{has}",
    "We are in need of {is_}{query}{has}",
)
_DESCRIPTIONS = (
    "{maker} makes this {noun} for every day. {first} and {second}, it stays good for years.",
    "A {noun} from {maker}: {first}, {second}, and a pleasure to use.",
    "Made with care by {maker}. This {noun} is known to be {first} and comes {second}.",
)


Kind = Mapping[str, Any]
"""a kind of product, as ``assortment.toml`` has it"""


@cache
def _assortment() -> tuple[dict[str, Any], str]:
    """The kinds, the values of their options and the makers, and a hash of them."""
    source = resources.files("paw_gym.envs.webshop") / "assortment.toml"
    text = source.read_text(encoding="utf-8")
    return tomllib.loads(text), hashlib.sha256(text.encode()).hexdigest()


def generate_products(count: int = NUM_PRODUCTS, seed: int = SEED) -> Iterator[Product]:
    """Products of all kinds in turn; the same for the same arguments, on every machine."""
    kinds = _assortment()[0]["kinds"]
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield _product(kind, number // len(kinds), seeded("product", seed, kind["code"], number))


def _product(kind: Kind, number: int, rng: random.Random) -> Product:
    assortment, _ = _assortment()
    maker, noun = rng.choice(assortment["makers"]), rng.choice(kind["nouns"])
    is_ = rng.sample(kind["is"], rng.randint(2, 3))
    has = rng.sample(kind["has"], rng.randint(2, 3))
    # one attribute is left out of the title: it has to be looked up
    title = f"{maker} {is_[0].title()} {noun} with {has[0].title()}"
    if rng.random() < 0.7:
        title += f" and {has[1].title()}"
    if rng.random() < 0.7:
        title += f", {is_[1].title()}"
    asked_is, asked_has = _asked(is_, has, rng)
    words = {"maker": maker, "noun": noun.lower(), "first": is_[0], "second": f"with {has[0]}"}
    tag, prices = _price(kind, rng)
    return Product(
        asin=f"{kind['code']}{number:04d}",
        title=title,
        description=rng.choice(_DESCRIPTIONS).format(**words).replace("with with", "with"),
        features=tuple(f"{text.capitalize()}" for text in (*is_, *has)),
        price_tag=tag,
        prices=prices,
        category=kind["category"],
        query=kind["query"],
        product_category=kind["path"],
        options=tuple(
            (name, _values(assortment["options"][name], rng)) for name in kind["options"]
        ),
        attributes=(*is_, *has),
        instruction=_instruction(kind, asked_is, asked_has, rng),
        instruction_attributes=(*asked_is, *asked_has),
    )


def _asked(is_: list[str], has: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    """The attributes that the instruction names: mostly ones that the title names too."""
    count = rng.randint(*_ASK_FOR)
    first = is_[: 2 if count == 3 and rng.random() < 0.5 else 1]
    return first, has[: count - len(first)]


def _instruction(kind: Kind, is_: list[str], has: list[str], rng: random.Random) -> str:
    return rng.choice(_WISHES).format(
        is_="".join(f"{text}, " for text in is_[:-1]) + f"{is_[-1]} " if is_ else "",
        query=kind["query"],
        has=f" that have {' and '.join(has)}" if has else "",
    )


def _price(kind: Kind, rng: random.Random) -> tuple[str, tuple[float, ...]]:
    low, high = kind["price"]
    # more cheap ones than expensive ones
    price = round(low + (high - low) * rng.random() ** 2) - 0.01
    if rng.random() < 0.8:
        return f"${price}", (price,)
    top = round(price * rng.uniform(1.1, 1.5), 2)
    return f"${price} to ${top}", (price, top)


def _values(choices: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """Some of the values, in their order."""
    picked = set(rng.sample(choices, min(len(choices), rng.randint(2, 4))))
    return tuple(value for value in choices if value in picked)


def generated_catalogue(num_products: int | None = None) -> Catalogue:
    """The generated products, compiled into the cache folder at first use."""
    count = NUM_PRODUCTS if num_products is None else num_products
    assortment, digest = _assortment()
    limit = len(assortment["kinds"]) * 1_000_000
    require_in("num_products", count, range(1, limit + 1))
    name = f"generated-{FORMAT}-{GENERATOR}-{SEED}-{count}-{digest[:12]}"
    return cached_catalogue(name, lambda: generate_products(count))
