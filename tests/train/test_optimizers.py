"""Small steps are not lost in bfloat16; our Muon takes PyTorch's, without its rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rows import token_row

from paw_train.algorithms.critic import Critic
from paw_train.algorithms.muon import Muon, orthogonalized
from paw_train.policies.local.guarded_step import MasterWeights
from paw_train.policies.local.policy import LocalPolicy, enable_recomputation
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings import CriticSettings
from paw_train.settings.model import ScratchModelSettings

SMALL = ScratchModelSettings(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32)
LEARNED = {"value_target": [3.0] * 20}
ROWS = [token_row(range(5, 25), ((4, 9), (9, 14)), **LEARNED)]


def test_small_steps_add_up() -> None:
    parameter = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    optimizer = torch.optim.SGD(weights.masters, lr=1e-4)
    for _ in range(100):
        optimizer.zero_grad()
        for part in parameter.split(2):  # as micro-batches do
            part.sum().backward()
        optimizer.step()
        weights.write_back()
    torch.testing.assert_close(weights.masters[0].detach(), torch.full((4,), 0.99))
    assert torch.equal(parameter.float(), torch.full((4,), 0.99).bfloat16().float())
    assert parameter.grad is None


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    parameter = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    for factor in (256.0, 1.0, 1.0):  # in bfloat16, 256 + 1 is 256
        (factor * parameter).sum().backward()
    assert weights.masters[0].grad.item() == 258.0


def test_saving_takes_no_second_set_of_masters_and_loads_into_none_of_another_precision() -> None:
    parameter = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    weights = MasterWeights([parameter])
    [saved] = weights.state_dict()
    assert saved.data_ptr() == weights.masters[0].data_ptr()
    with pytest.raises(ValueError, match=r"model\.dtype"):
        weights.load_state_dict([])
    weights.close()
    parameter.sum().backward()
    assert parameter.grad is not None
    wide = torch.ones(3, requires_grad=True)  # stands for itself
    assert MasterWeights([wide]).masters[0] is wide and MasterWeights([wide]).state_dict() == []


def _critic(seed: int = 0) -> Any:
    tokenizer = word_tokenizer(["red green blue"])
    model = scratch_model(SMALL, 64, seed).to(torch.bfloat16).eval()
    enable_recomputation(model)
    critic = Critic(LocalPolicy(model, tokenizer), CriticSettings(lr=1e-5), "token", 10**6)
    torch.nn.init.constant_(critic.head.weight, 0.5)
    return critic


def test_a_critic_has_the_policys_precision_and_recomputation_and_learns_in_float32() -> None:
    critic = _critic()
    calls: list[int] = []
    critic.decoder.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    assert {p.dtype for p in critic.decoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in critic.parameters} == {torch.float32}
    before = [p.detach().clone() for p in critic.parameters]
    for _ in range(3):
        critic.step(ROWS)
    assert len(calls) == 2 * 3
    moved = [(p - q).abs().max() for p, q in zip(critic.parameters, before, strict=True)]
    assert min(moved[:-2]) > 1e-5  # steps that bfloat16 would round away, in every weight
    for weight, master in zip(critic.weights.parameters, critic.parameters, strict=True):
        assert torch.equal(weight.detach().float(), master.detach().to(weight.dtype).float())


def test_a_critic_resumes_exactly(tmp_path: Any) -> None:
    critic, again = _critic(), _critic(seed=1)
    critic.step(ROWS)
    torch.save(critic.state_dict(), tmp_path / "state.pt")
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (critic, again):
        one.step(ROWS)
    for p, q in zip(critic.parameters, again.parameters, strict=True):
        assert torch.equal(p, q)


COEFFICIENTS = (3.4445, -4.775, 2.0315)
SHAPES = ((6, 6), (12, 6), (6, 12), (6, 6), (3, 6))


def _weights() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def _trained(optimizer: Any, parameters: list[Any], steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in parameters[:-1]:  # the last never has a gradient
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_its_steps_are_those_of_pytorch_but_for_bfloat16() -> None:
    ours, theirs = _weights(), _weights()
    mine = Muon(ours, lr=0.02, weight_decay=0.01)
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.01)
    _trained(mine, ours, 4)
    _trained(other, theirs, 4)
    start = _weights()
    for one, two, before in zip(ours, theirs, start, strict=True):
        moved, expected = (one - before).flatten(), (two - before).flatten()
        assert float((moved - expected).norm()) <= 0.03 * float(expected.norm())
    assert torch.equal(ours[-1], start[-1]), "no gradient, no step"


def test_a_state_of_pytorch_is_continued() -> None:
    ours, theirs = _weights(), _weights()
    other = torch.optim.Muon(theirs, lr=0.02)
    _trained(other, theirs, 2)
    mine = Muon(ours, lr=0.5)
    mine.load_state_dict(other.state_dict())
    assert mine.param_groups[0]["lr"] == 0.02
    for parameter, same in zip(ours[:-1], theirs[:-1], strict=True):
        buffers = (mine.state[parameter], other.state[same])
        assert torch.equal(*(buffer["momentum_buffer"] for buffer in buffers))


@pytest.mark.parametrize("shape", [(8, 8), (20, 8), (8, 20)])
def test_singular_vectors_stay_and_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(2)
    matrices = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    found = orthogonalized(matrices, COEFFICIENTS, 5, 1e-7)
    for matrix, result in zip(matrices, found, strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        inside = u.T @ result @ v.T
        assert torch.allclose(inside, inside.diag().diag(), atol=1e-9)
        assert 0.6 < float(inside.diag().min()) <= float(inside.diag().max()) < 1.3
    assert not orthogonalized(torch.zeros(1, *shape), COEFFICIENTS, 5, 1e-7).any()
