"""Our Muon takes PyTorch's steps, without its rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paw_train.algorithms.muon import Muon, orthogonalized

COEFFICIENTS = (3.4445, -4.775, 2.0315)
SHAPES = ((6, 6), (12, 6), (6, 12), (6, 6), (3, 6))


def weights() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def trained(optimizer: Any, parameters: list[Any], steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in parameters[:-1]:  # the last never has a gradient
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_its_steps_are_those_of_pytorch_but_for_bfloat16() -> None:
    ours, theirs = weights(), weights()
    mine = Muon(ours, lr=0.02, weight_decay=0.01)
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.01)
    trained(mine, ours, 4)
    trained(other, theirs, 4)
    start = weights()
    for one, two, before in zip(ours, theirs, start, strict=True):
        moved, expected = (one - before).flatten(), (two - before).flatten()
        assert float((moved - expected).norm()) <= 0.03 * float(expected.norm())
    assert torch.equal(ours[-1], start[-1]), "no gradient, no step"


def test_a_state_of_pytorch_is_continued() -> None:
    ours, theirs = weights(), weights()
    other = torch.optim.Muon(theirs, lr=0.02)
    trained(other, theirs, 2)
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


def test_matrices_of_one_shape_do_not_influence_each_other() -> None:
    matrices = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(3))
    together = orthogonalized(matrices, COEFFICIENTS, 5, 1e-7)
    alone = [orthogonalized(matrix[None], COEFFICIENTS, 5, 1e-7)[0] for matrix in matrices]
    assert torch.allclose(together, torch.stack(alone), atol=1e-6)
    assert not orthogonalized(torch.zeros(1, 5, 7), COEFFICIENTS, 5, 1e-7).any()


def test_a_closure_computes_the_gradients() -> None:
    parameter = torch.nn.Parameter(torch.eye(3))
    optimizer = Muon([parameter], lr=0.1, weight_decay=0.0)

    def closure() -> float:
        loss = (parameter**2).sum()
        loss.backward()
        return float(loss)

    assert optimizer.step(closure) == 3.0
    assert float((parameter**2).sum()) < 3.0
