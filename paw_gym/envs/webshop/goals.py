"""Goals of shoppers, of either kind: their prices and limits, and the task sets of them.

A split holds products, not goals: all goals of a product are in the split that the hash of its asin
gives, so no split knows a product that another one asks for.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.core import Task, TaskSet, split_of_key
from paw_gym.envs.webshop.catalogue import Catalogue, Product, text, texts
from paw_gym.internals.files import file_at, open_text

NO_LIMIT = 1_000_000.0
"""dollars; the limit of a goal that names none"""
LIMITS = tuple(10.0 * i for i in range(1, 100))
"""price limits that goals may name, in dollars"""
_LIMITS_IN_REACH = 4


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: the product to buy, with its attributes, options and price limit."""

    asin: str
    """the product that the goal was made from"""
    query: str
    name: str
    """that product's title"""
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """names and values; goals written by people name values only, the names are then empty"""
    price_upper: float
    category: str = ""

    @classmethod
    def from_original(cls, goal: Mapping[str, Any]) -> Goal:
        """A goal in the form of the original program (``goal_options``, ``instruction_text``, ...)."""
        try:
            raw = goal.get("goal_options")
            if isinstance(raw, Mapping):
                options = [(name, text(value, "goal_options")) for name, value in raw.items()]
            else:
                options = [("", value) for value in texts(raw, "goal_options")]
            return cls(
                asin=text(goal["asin"], "asin"),
                query=text(goal["query"], "query"),
                name=text(goal["name"], "name"),
                product_category=text(goal["product_category"], "product_category"),
                instruction=text(goal["instruction_text"], "instruction_text"),
                attributes=texts(goal["attributes"], "attributes"),
                options=tuple(options),
                price_upper=dollars(goal["price_upper"], "price_upper"),
                category=text(goal.get("category", ""), "category"),
            )
        except KeyError as error:
            raise ValueError(
                f"it lacks the field {error} of the original program's goals."
            ) from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"it is not of the original program's form: {error}.") from error

    def to_original(self) -> dict[str, Any]:
        """The goal in the form of the original program."""
        named = all(name for name, _ in self.options)
        values = [value for _, value in self.options]
        return {
            "asin": self.asin,
            "category": self.category,
            "query": self.query,
            "name": self.name,
            "product_category": self.product_category,
            "instruction_text": self.instruction,
            "attributes": list(self.attributes),
            "price_upper": self.price_upper,
            "goal_options": dict(self.options) if named else values,
        }


def seeded(*parts: object) -> random.Random:
    """A generator that depends on its arguments alone: not on the process, its hash seed or the order."""
    text = "\x1f".join(map(str, parts))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def sample_price(product: Product, seed: int) -> float:
    """A product's price in dollars; if it has a range, a uniform sample from it by seed and asin."""
    if len(product.prices) == 1:
        return product.prices[0]
    return seeded("price", seed, product.asin).uniform(*product.prices)


def sample_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """The price limit of a goal, and how its instruction states it: the larger of two different ones of the
    next four above the price; none if fewer than two are left (the original's rule)."""
    above = [limit for limit in LIMITS if limit > price][:_LIMITS_IN_REACH]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def count_combinations(product: Product) -> int:
    """How many synthetic goals a product gives: one for each choice of its options."""
    if product.instruction is None:
        return 0
    return math.prod(len(values) for _, values in product.options)


def synthetic_goal(product: Product, number: int, price: float, seed: int) -> Goal:
    """A product's synthetic goal for the ``number``-th choice of its options."""
    listed = sorted(product.options)
    picks = np.unravel_index(number, [len(values) for _, values in listed])
    options = [(name, values[pick]) for (name, values), pick in zip(listed, picks, strict=True)]
    asked = ", and ".join(f"{name}: {value}" for name, value in options)
    words = f"{product.instruction}{' with ' if asked else ''}{asked}"
    rng = seeded("limit", seed, product.asin)
    return _goal(product, words, product.instruction_attributes, options, sample_limit(price, rng))


def human_goal(
    product: Product, entry: Mapping[str, Any], number: int, price: float, seed: int
) -> Goal:
    """A goal that a person wrote (an entry of ``items_human_ins.json``)."""
    options = entry.get("instruction_options") or []
    values = options.values() if isinstance(options, Mapping) else options
    words, attributes = entry["instruction"].strip("."), entry["instruction_attributes"]
    rng = seeded("limit", seed, product.asin, number)
    unnamed = [("", value) for value in values]
    return _goal(product, words, attributes, unnamed, sample_limit(price, rng))


def _goal(
    product: Product,
    words: str,
    attributes: Iterable[str],
    options: Iterable[tuple[str, str]],
    limit: tuple[float, str],
) -> Goal:
    return Goal(
        asin=product.asin,
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        instruction=words + limit[1],
        attributes=tuple(attributes),
        options=tuple(options),
        price_upper=limit[0],
        category=product.category,
    )


def load_given(value: Any, what: str) -> Any:
    """Goals or prices as given: the value itself, or the path of a JSON file, or JSON text."""
    if not isinstance(value, str | Path):
        return value
    content = str(value)
    if not content.lstrip().startswith(("[", "{")):
        path = file_at(content)
        if path is None:
            raise ValueError(f"{what}: there is no file {content[:200]!r}, and it is no JSON text.")
        with open_text(path) as file:
            content = file.read()
    try:
        return json.loads(content)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON: {error}.") from error


def given_goals(value: Any) -> list[Goal]:
    """Goals of the ``goals`` argument: a list of dictionaries in the original's form, or JSON of it."""
    loaded = load_given(value, "goals")
    if not isinstance(loaded, Sequence) or isinstance(loaded, str):
        raise ValueError(f"goals: expected a list of goals, got {type(loaded).__name__}.")
    goals = []
    for number, goal in enumerate(loaded):
        try:
            goals.append(Goal.from_original(goal))
        except ValueError as error:
            raise ValueError(f"goals, number {number}: {error}") from error
    return goals


def given_prices(value: Any) -> dict[str, float]:
    """Prices of the ``prices`` argument: dollars by asin, or JSON of it."""
    loaded = load_given(value, "prices")
    if not isinstance(loaded, Mapping):
        raise ValueError(f"prices: expected asin -> dollars, got {type(loaded).__name__}.")
    try:
        return {str(asin): dollars(price, repr(asin)) for asin, price in loaded.items()}
    except TypeError as error:
        raise ValueError(f"prices: {error}.") from error


def dollars(value: Any, field: str) -> float:
    """A price of 0 or more, as a number or as the text of one."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise TypeError(f"{field} is {value!r:.60}, expected dollars")
    return number


def digest_of(parts: Iterable[object]) -> str:
    """A hash of values, for fingerprints."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True, default=repr).encode())
        digest.update(b"\x1e")
    return digest.hexdigest()


SPLITS = {"train": 0.8, "valid": 0.1, "test": 0.1}
"""share of the products"""
_SALT = "webshop split 1"
Price = Callable[[str], float]


def split_of(asin: str) -> str:
    """The split that a product belongs to; depends on its asin alone.

    >>> split_of("B0743JKHBV")
    'train'
    """
    return split_of_key(f"{_SALT}/{asin}", SPLITS)


def _task(task_id: str, goal: Goal) -> Task:
    return Task(task_id, goal.instruction, goal.category or "default", goal)


def given_tasks(goals: Sequence[Goal], fingerprint: str) -> TaskSet:
    """Goals that the user gives, in their order: ``goal/0``, ``goal/1``, ..."""
    ids = [f"goal/{number}" for number in range(len(goals))]

    def load(task_id: str) -> Task:
        return _task(task_id, goals[int(task_id.partition("/")[2])])

    given = [goal.to_original() for goal in goals]
    return TaskSet(ids, load, digest_of(["given", fingerprint, given]))


def synthetic_tasks(
    catalogue: Catalogue, split: str, price: Price, seed: int, fingerprint: str
) -> TaskSet:
    """A goal for each choice of options of each product that has an instruction."""
    ids = []
    for product in catalogue:
        count = count_combinations(product)
        if count and split_of(product.asin) == split:
            ids += [f"synthetic/{product.asin}/{number}" for number in range(count)]

    def load(task_id: str) -> Task:
        _, asin, number = task_id.split("/")
        product = catalogue.by_asin(asin)
        return _task(task_id, synthetic_goal(product, int(number), price(asin), seed))

    return TaskSet(ids, load, digest_of(["synthetic", split, seed, fingerprint]), split)


def human_tasks(
    catalogue: Catalogue,
    entries: Mapping[str, Sequence[Mapping[str, Any]]],
    split: str,
    price: Price,
    seed: int,
    fingerprint: str,
) -> TaskSet:
    """The instructions that people wrote for products of the catalogue (those that name attributes)."""
    ids = [
        f"human/{asin}/{number}"
        for asin, written in entries.items()
        if split_of(asin) == split and asin in catalogue
        for number, entry in enumerate(written)
        if entry.get("instruction_attributes")
    ]

    def load(task_id: str) -> Task:
        _, asin, number = task_id.split("/")
        product, place = catalogue.by_asin(asin), int(number)
        return _task(task_id, human_goal(product, entries[asin][place], place, price(asin), seed))

    return TaskSet(
        ids, load, digest_of(["human", split, seed, fingerprint, sorted(entries.items())]), split
    )
