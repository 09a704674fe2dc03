"""Sums over weights: equal for the same weights in other layouts, different for stale ones."""

from __future__ import annotations

import pytest
import torch

from paw_train.training.openrlhf import weights
from paw_train.training.openrlhf.weights import (
    StaleWeightsError,
    Sums,
    require_equal,
    sums_of,
    zero_sums,
)


def _total(*tensors: object) -> Sums:
    total = zero_sums()
    for tensor in tensors:
        total = total + sums_of(tensor)  # type: ignore[arg-type]
    return total


def _weights() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(64, 32, generator=generator).bfloat16() for _ in range(2))  # type: ignore[return-value]


def test_fusing_and_padding_do_not_change_the_sums() -> None:
    a, b = _weights()
    fused = torch.cat([b, a])
    padded = torch.nn.functional.pad(a, (0, 0, 0, 8))
    assert _total(a, b).equal(_total(fused))
    assert _total(a).equal(_total(padded))
    require_equal(_total(a, b), [_total(fused), _total(b, a)], 0)


def test_sums_need_no_second_copy_of_a_large_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
                Largest.bytes = max(Largest.bytes, result.nbytes)
            return result

    monkeypatch.setattr(weights, "CHUNK", 100)
    a, _ = _weights()
    with Largest():
        found = sums_of(a)
    assert found.equal(
        Sums(*(float(f(a.double()).sum()) for f in (_same, torch.abs, torch.square)))
    )
    assert 0 < Largest.bytes <= 8 * 100


def test_sums_leave_a_tensor_of_the_same_precision_as_it_is() -> None:
    values = torch.tensor([-2.0, 1.0], dtype=torch.float64)
    assert sums_of(values) == Sums(-1.0, 3.0, 5.0)
    assert values.tolist() == [-2.0, 1.0]


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


@pytest.mark.parametrize("change", ["one value", "sign", "nan", "one missing", "old"])
def test_other_weights_are_found(change: str) -> None:
    a, b = _weights()
    other = b.clone()
    if change == "one value":
        other[3, 5] += 0.0078125
    elif change == "sign":
        other[3, 5] *= -1
    elif change == "nan":
        other[0, 0] = float("nan")
    elif change == "old":
        other = (other.float() * 1.01).bfloat16()
    sampled = _total(a) if change == "one missing" else _total(a, other)
    with pytest.raises(StaleWeightsError, match=r"update 7, vLLM engine 1"):
        require_equal(_total(a, b), [_total(a, b), sampled], 7)
