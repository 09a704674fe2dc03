"""Task sets of the shop: goals by id, made when they are asked for, in disjoint splits.

A split holds products, not goals: all goals of a product are in the split that the hash of its asin
says, so no split knows a product that another one asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paw_gym.core import Task, TaskSet, split_of_key
from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.goals import (
    Goal,
    count_combinations,
    digest_of,
    human_goal,
    synthetic_goal,
)

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
    """A goal for each choice of options of each product that has an instruction.

    Args:
        catalogue: the products.
        split: a name of ``SPLITS``.
        price: dollars by asin.
        seed: seeds the price limits.
        fingerprint: of all that the goals depend on besides.
    """
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
    """The instructions that people wrote for products of the catalogue (those that name attributes).

    Args:
        catalogue: the products.
        entries: ``items_human_ins.json``: by asin, what people wrote.
        split: a name of ``SPLITS``.
        price: dollars by asin.
        seed: seeds the price limits.
        fingerprint: of all that the goals depend on besides.
    """
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
