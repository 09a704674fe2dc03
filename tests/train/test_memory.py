"""The formulas of the plan against what the project's own passes allocate at real shapes."""

from __future__ import annotations

from types import ModuleType

import pytest
from files import load

from paw_train.training.memory import (
    KNOWN,
    Micro,
    critic_bytes,
    scoring_bytes,
    training_bytes,
)

TOKENS = 16384
SHAPES = [
    "Qwen/Qwen2.5-0.5B-Instruct",  # one matrix for embedding and head
    pytest.param("Qwen/Qwen2.5-7B-Instruct", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def peaks() -> ModuleType:
    return load("benchmarks/memory.py")


@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_takes_what_the_plan_says(peaks: ModuleType, name: str) -> None:
    shape, micro = KNOWN[name], Micro(TOKENS, scored=int(TOKENS * peaks.SCORED))
    assert peaks.policy_peak(shape, TOKENS) == pytest.approx(training_bytes(shape, micro), rel=0.15)
    assert peaks.policy_peak(shape, TOKENS, gradients=False) == pytest.approx(
        scoring_bytes(shape, micro), rel=0.15
    )
    assert peaks.critic_peak(shape, TOKENS) == pytest.approx(critic_bytes(shape, micro), rel=0.15)


def test_a_pass_that_keeps_its_activations_takes_what_the_plan_says(peaks: ModuleType) -> None:
    shape = KNOWN["Qwen/Qwen2.5-0.5B-Instruct"]
    found = peaks.policy_peak(shape, TOKENS, recompute=False)
    assert found == pytest.approx(training_bytes(shape, Micro(TOKENS, recompute=False)), rel=0.15)


def test_an_entropy_bonus_takes_what_the_plan_says(peaks: ModuleType) -> None:
    shape = KNOWN["Qwen/Qwen2.5-0.5B-Instruct"]
    found = peaks.policy_peak(shape, TOKENS, entropy=True)
    assert found == pytest.approx(training_bytes(shape, Micro(TOKENS, entropy=True)), rel=0.05)


@pytest.mark.slow
def test_paw_adds_hardly_any_memory(peaks: ModuleType) -> None:
    assert 0 <= peaks.added_by_paw("Qwen/Qwen2.5-1.5B-Instruct", TOKENS) <= 0.024
