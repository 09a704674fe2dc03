"""Steps too small for bfloat16 are not lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rows import token_row

from paw_train.algorithms.critic import Critic
from paw_train.policies.local.guarded_step import MasterWeights
from paw_train.policies.local.policy import LocalPolicy, enable_recomputation
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings import CriticSettings
from paw_train.settings.model import ScratchModelSettings

SMALL = ScratchModelSettings(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32)
LEARNED = {"value_target": [3.0] * 20}
ROWS = [token_row(range(5, 25), ((4, 9), (9, 14)), **LEARNED)]


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


def _critic(seed: int = 0) -> Any:
    tokenizer = word_tokenizer(["red green blue"])
    model = scratch_model(SMALL, 64, seed).to(torch.bfloat16).eval()
    enable_recomputation(model)
    critic = Critic(LocalPolicy(model, tokenizer), CriticSettings(lr=1e-5), "token", 10**6)
    torch.nn.init.constant_(critic.head.weight, 0.5)
    return critic


def _learn(critic: Any, steps: int) -> None:
    for _ in range(steps):
        critic.step(ROWS)


def test_a_critic_is_held_in_the_policys_precision_and_learns_in_float32() -> None:
    critic = _critic()
    assert {p.dtype for p in critic.decoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in critic.parameters} == {torch.float32}
    before = [p.detach().clone() for p in critic.parameters]
    _learn(critic, 3)
    moved = [(p - q).abs().max() for p, q in zip(critic.parameters, before, strict=True)]
    assert min(moved[:-2]) > 1e-5  # steps that bfloat16 would round away, in every weight
    for weight, master in zip(critic.weights.parameters, critic.parameters, strict=True):
        assert torch.equal(weight.detach().float(), master.detach().to(weight.dtype).float())


def test_a_critic_recomputes_its_activations_where_the_policy_does() -> None:
    critic = _critic()
    calls: list[int] = []
    critic.decoder.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    _learn(critic, 1)
    assert len(calls) == 2


def test_a_critic_resumes_exactly(tmp_path: Any) -> None:
    critic = _critic()
    _learn(critic, 2)
    torch.save(critic.state_dict(), tmp_path / "state.pt")
    again = _critic(seed=1)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (critic, again):
        _learn(one, 2)
    for p, q in zip(critic.parameters, again.parameters, strict=True):
        assert torch.equal(p, q)


def test_saving_takes_no_second_set_of_masters() -> None:
    weights = MasterWeights([torch.ones(4, dtype=torch.bfloat16, requires_grad=True)])
    [saved] = weights.state_dict()
    assert saved.data_ptr() == weights.masters[0].data_ptr()
