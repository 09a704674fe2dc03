"""What vLLM is sent of a model with a LoRA adapter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft")

from files import load  # noqa: E402

from paw_train.policies.local.scratch import scratch_model  # noqa: E402
from paw_train.training.openrlhf.weights import WholeModel, is_adapted  # noqa: E402

one_rank = load("tests/openrlhf/one_rank.py")


def _adapted() -> tuple[Any, dict[str, Any]]:
    model = scratch_model(one_rank.SMALL, 64, 0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wrapped = peft.get_peft_model(
        model,
        peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8, target_modules="all-linear"),
    )
    return wrapped, before


def test_a_fresh_adapter_changes_nothing() -> None:
    model, before = _adapted()
    assert is_adapted(model)
    assert not is_adapted(scratch_model(one_rank.SMALL, 64, 0))
    sent = dict(WholeModel(model).named_parameters())
    assert set(sent) == set(before)
    for name, value in before.items():
        assert sent[name].shape == value.shape
        assert torch.equal(sent[name].data, value)


def test_what_is_sent_computes_what_the_adapted_model_computes() -> None:
    model, before = _adapted()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 10
    sent = {name: p.data for name, p in WholeModel(model).named_parameters()}
    assert any(not torch.equal(sent[name], value) for name, value in before.items())
    plain = scratch_model(one_rank.SMALL, 64, 1)
    plain.load_state_dict(sent, strict=False)
    ids = torch.arange(5, 25)[None]
    model.eval()
    with torch.no_grad():
        ours, theirs = (m(input_ids=ids).logits for m in (plain, model))
    assert torch.allclose(ours, theirs, atol=1e-5)
