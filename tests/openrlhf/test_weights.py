"""Weights for vLLM, and sums over them: equal in other layouts, different for stale ones."""

from __future__ import annotations

import pytest
import torch
from small_policies import word_policy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paw_train.training.openrlhf import weights
from paw_train.training.openrlhf.weights import (
    StaleWeightsError,
    Sums,
    WholeModel,
    is_adapted,
    require_equal,
    sums_of,
)


def _total(*tensors: Tensor) -> Sums:
    return sums_of(tensors)


def _weights() -> Tensor:
    return torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_fusing_and_padding_do_not_change_the_sums() -> None:
    a, b = _weights()
    fused = torch.cat([b, a])
    padded = torch.nn.functional.pad(a, (0, 0, 0, 8))
    assert _total(a, b).equal(_total(fused))
    assert _total(a).equal(_total(padded))
    require_equal(_total(a, b), [_total(fused), _total(b, a)], 0)


def test_sums_need_no_second_copy_of_a_large_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.dtype == torch.float64:
                Largest.bytes = max(Largest.bytes, result.nbytes)
            return result

    monkeypatch.setattr(weights, "CHUNK", 100)
    a, _ = _weights()
    with Largest():
        found = sums_of([a])
    exact = a.double()
    assert found.equal(Sums(*(v.sum().item() for v in (exact, exact.abs(), exact.square()))))
    assert 0 < Largest.bytes <= 8 * 100


def test_sums_leave_a_tensor_of_the_same_precision_as_it_is() -> None:
    values = torch.tensor([-2.0, 1.0], dtype=torch.float64)
    assert sums_of([values]) == Sums(-1.0, 3.0, 5.0)
    assert values.tolist() == [-2.0, 1.0]


@pytest.mark.parametrize("change", ["one value", "sign", "nan", "one missing", "old"])
def test_other_weights_are_found(change: str) -> None:
    a, b = _weights()
    one = torch.zeros(64, 32)
    one[3, 5] = 1
    others = {
        "one value": b + 0.0078125 * one,
        "sign": b - 2 * one * b,
        "nan": b / (1 - one) * (1 - one),
        "one missing": 0 * b,
        "old": 1.01 * b.float(),
    }
    sampled = _total(a, others[change].bfloat16())
    with pytest.raises(StaleWeightsError, match=r"update 7, vLLM engine 1"):
        require_equal(_total(a, b), [_total(a, b), sampled], 7)


def test_what_is_sent_computes_what_the_adapted_model_computes() -> None:
    """A model with a LoRA adapter is sent to vLLM as a whole one."""
    peft = pytest.importorskip("peft")
    plain = word_policy(["red"]).model.eval()
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    given = {"task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 8, "target_modules": "all-linear"}
    model = peft.get_peft_model(word_policy(["red"]).model.eval(), peft.LoraConfig(**given))
    assert is_adapted(model) and not is_adapted(plain)
    sent = {name: p.data for name, p in WholeModel(model).named_parameters()}
    assert sent.keys() == before.keys()
    assert all(torch.equal(sent[name], value) for name, value in before.items()), "a fresh adapter"
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 10
    sent = {name: p.data for name, p in WholeModel(model).named_parameters()}
    assert any(not torch.equal(sent[name], value) for name, value in before.items())
    plain.load_state_dict(sent, strict=False)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours, theirs = (m(input_ids=ids).logits for m in (plain, model))
    assert torch.allclose(ours, theirs, atol=1e-5)
