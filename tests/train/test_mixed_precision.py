"""Steps too small for bfloat16 are not lost."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paw_train.policies.local.mixed_precision import MasterWeights  # noqa: E402


def _train(weights: MasterWeights, parameter: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(weights.masters, lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in parameter.split(2):  # as micro-batches do
            part.sum().backward()
        optimizer.step()
        weights.write_back()


def test_small_steps_add_up() -> None:
    alone = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(100):
        with torch.no_grad():
            alone -= 1e-4
    assert (alone == 1).all()  # rounded away, each of them
    parameter = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    _train(weights, parameter, 100)
    torch.testing.assert_close(weights.masters[0].detach(), torch.full((4,), 0.99))
    assert torch.equal(parameter.float(), torch.full((4,), 0.99).bfloat16().float())
    assert parameter.grad is None


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    parameter = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    for factor in (256.0, 1.0, 1.0):  # in bfloat16, 256 + 1 is 256
        (factor * parameter).sum().backward()
    assert weights.masters[0].grad.item() == 258.0


def test_wide_parameters_stand_for_themselves() -> None:
    parameter = torch.ones(3, requires_grad=True)
    weights = MasterWeights([parameter])
    assert weights.masters[0] is parameter
    parameter.sum().backward()
    assert parameter.grad is not None
    assert weights.state_dict() == []


def test_state_comes_back_exactly_and_mismatches_are_refused() -> None:
    parameter = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    _train(weights, parameter, 7)
    again = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    resumed = MasterWeights([again])
    resumed.load_state_dict(weights.state_dict())
    _train(weights, parameter, 7)
    _train(resumed, again, 7)
    assert torch.equal(weights.masters[0], resumed.masters[0])
    assert torch.equal(parameter, again)
    with pytest.raises(ValueError, match=r"model\.dtype"):
        resumed.load_state_dict([])
    resumed.close()
    again.sum().backward()
    assert again.grad is not None
