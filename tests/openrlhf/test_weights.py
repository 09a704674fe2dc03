"""Sums over weights: equal for the same weights in other layouts, different for stale ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from paw_train.training.openrlhf.weights import (  # noqa: E402
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
    played = _total(a) if change == "one missing" else _total(a, other)
    with pytest.raises(StaleWeightsError, match=r"update 7, vLLM engine 1"):
        require_equal(_total(a, b), [_total(a, b), played], 7)
