"""Tasks that are made by seed: the same ones again, and none of one split in another."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paw_gym.core import EnvDefinitionError, Task, TaskSet
from paw_gym.generated import SPLITS, sampled_tasks, shared_sets


def _dominoes(split: str, dots: int, num_tasks: int = 40) -> Sequence[Task]:
    """Two halves of up to so many dots: a domino is the same one when it is turned round."""
    return [
        *sampled_tasks(
            f"dominoes/{dots}",
            split,
            lambda rng: (rng.randint(0, dots), rng.randint(0, dots)),
            lambda halves: str(sorted(halves)),
            lambda task_id, halves: Task(task_id, "Lay it down.", data=halves),
            num_tasks,
        )
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(10, 60))
def test_a_task_of_one_split_is_in_no_other_not_even_turned_round(dots: int) -> None:
    found = {
        split: {tuple(sorted(task.data)) for task in _dominoes(split, dots)} for split in SPLITS
    }
    assert not found["train"] & found["valid"]
    assert not found["train"] & found["test"]
    assert not found["valid"] & found["test"]


def test_a_number_gives_the_same_task_whatever_was_made_before() -> None:
    tasks = _dominoes("train", 50, 30)
    random.seed(1)
    again = _dominoes("train", 50, 50)
    assert [(t.id, t.data) for t in tasks] == [(t.id, t.data) for t in again[:30]]
    assert len({t.data for t in again}) > 25


def test_a_split_that_the_generator_cannot_fill_is_named() -> None:
    filled = []
    for split in SPLITS:
        try:
            _dominoes(split, 0, 1)
        except ValueError as error:
            assert f"in split {split!r}: there are too few different ones" in str(error)
        else:
            filled.append(split)
    assert len(filled) == 1, "there is one domino, so one split has it"


def test_sets_are_shared_by_equal_arguments_of_one_type_alone() -> None:
    """Else the first to ask with 256.0 would decide the ids and the fingerprint of all that ask with 256."""

    @shared_sets(maxsize=4)
    def tasks_of(size: object) -> TaskSet:
        return TaskSet([f"{size}"], lambda task_id: Task(task_id, "Do it."), f"{size}")

    assert tasks_of(256.0).ids == ["256.0"]
    assert tasks_of(256).ids == ["256"]
    assert tasks_of(1) is tasks_of(1)
    assert tasks_of(True).ids == ["True"]
    assert tasks_of([3]).ids == ["[3]"]  # cannot be looked up


@pytest.mark.parametrize("number", [0, -5, "20", 2.0, True])
def test_no_number_of_tasks_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match=r"num_tasks is .*; expected a whole number of 1 or more"):
        _dominoes("train", 6, number)  # type: ignore[arg-type]


def test_a_key_that_is_no_string_is_named() -> None:
    tasks = sampled_tasks("dice", "train", lambda rng: rng.randint(1, 6), int, Task, 3)  # type: ignore[arg-type]
    with pytest.raises(
        EnvDefinitionError, match=r"key gives an int, \d for an int, \d; expected a str"
    ):
        tasks[0]
