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


class Gated:
    """Rollouts that begin when asked for and end when let."""

    def __init__(self) -> None:
        self.began = [threading.Event() for _ in range(4)]
        self.let = [threading.Event() for _ in range(4)]

    def __iter__(self) -> Iterator[int]:
        for number in range(4):
            self.began[number].set()
            assert self.let[number].wait(SOON)
            yield number


def test_the_next_rollout_is_under_way_while_the_trainer_has_one() -> None:
    gated = Gated()
    gated.let[0].set()
    pipeline = RolloutPipeline(iter(gated), 1)
    assert pipeline.take() == 0
    assert gated.began[1].wait(SOON)  # nobody has asked for it
    gated.let[1].set()
    with pipeline.paused():  # waits for it, and no other begins
        assert not gated.began[2].is_set()
    assert not gated.began[2].wait(0.05)  # one is there that was not taken
    assert pipeline.take() == 1
    assert gated.began[2].wait(SOON)
    gated.let[2].set()
    gated.let[3].set()


def test_weights_wait_for_the_rollout_under_way() -> None:
    gated = Gated()
    gated.let[0].set()
    pipeline = RolloutPipeline(iter(gated), 2)
    pipeline.take()
    assert gated.began[1].wait(SOON)
    sent, done = threading.Event(), threading.Event()

    def send() -> None:
        with pipeline.paused():
            sent.set()
            assert done.wait(SOON)

    thread = threading.Thread(target=send)
    thread.start()
    assert not sent.wait(0.05)
    gated.let[1].set()
    assert sent.wait(SOON)
    # there is room for another ahead, and it waits for the weights
    assert not gated.began[2].wait(0.05)
    done.set()
    assert gated.began[2].wait(SOON)
    thread.join()
    assert pipeline.waited > 0
    for event in gated.let:
        event.set()


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
