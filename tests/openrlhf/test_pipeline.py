"""Rollouts beside training: overlapping, bounded in number, and never while weights are sent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from paw_train.training.openrlhf.pipeline import RolloutPipeline

SOON = 120.0
"""seconds that a thread has for what it does at once"""


@pytest.mark.parametrize("seed", range(12))
def test_no_rollout_is_staler_than_the_bound_or_of_two_policies(seed: int) -> None:
    """Whatever takes how long; an engine's weights are ``version``, a trainer's ``update``."""
    rng = random.Random(seed)
    ahead, updates = rng.choice([1, 1, 2, 3]), 12
    slow_rollouts, slow_training = rng.choice([(0.004, 0.0), (0.0, 0.004), (0.003, 0.003)])
    version = 0

    def rollouts() -> Iterator[tuple[int, int]]:
        for number in range(updates):
            began = version
            time.sleep(rng.random() * slow_rollouts)
            assert version == began, "weights came during a rollout"
            yield number, began

    pipeline = RolloutPipeline(rollouts(), ahead)
    found = []
    for update in range(updates):
        number, sampled_by = pipeline.take()
        assert number == update
        found.append(update - sampled_by)
        time.sleep(rng.random() * slow_training)
        with pipeline.paused():
            version = update + 1
    assert found[0] == 0
    assert all(0 <= staleness <= ahead for staleness in found)
    with pytest.raises(RuntimeError, match="All rollouts"):
        pipeline.take()


def test_rollouts_begin_unasked_where_there_is_room_and_weights_wait_for_them() -> None:
    began, let = ([threading.Event() for _ in range(4)] for _ in range(2))

    def rollouts() -> Iterator[int]:
        for number in range(4):
            began[number].set()
            assert let[number].wait(SOON)
            yield number

    let[0].set()
    pipeline = RolloutPipeline(rollouts(), 2)
    assert pipeline.take() == 0
    assert began[1].wait(SOON)
    threading.Timer(0.05, let[1].set).start()
    with pipeline.paused():
        assert let[1].is_set()
        assert not began[2].wait(0.05)  # there is room for it, and it waits for the weights
    assert pipeline.waited > 0
    assert began[2].wait(SOON)
    let[2].set()
    assert not began[3].wait(0.05)  # two are there that were not taken
    assert pipeline.take() == 1
    assert began[3].wait(SOON)
    let[3].set()


def test_an_error_of_a_rollout_reaches_the_trainer_after_what_came_before() -> None:
    failing = threading.Event()

    def rollouts() -> Iterator[int]:
        yield 0
        failing.set()
        raise ConnectionError("the engine is gone")

    pipeline = RolloutPipeline(rollouts(), 1)
    assert pipeline.take() == 0
    assert failing.wait(SOON)
    with pytest.raises(ConnectionError, match="the engine is gone"), pipeline.paused():
        pytest.fail("weights would be sent to an engine that is gone")
    with pytest.raises(ConnectionError, match="the engine is gone"):
        pipeline.take()
