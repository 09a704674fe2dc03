"""Muon for the weight matrices of a model's blocks, AdamW for all else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def split_optimizers(
    model: torch.nn.Module,
    masters: Sequence[Tensor],
    lr: float,
    matrix_lr: float | None,
    matrix_decay: float = 0.0,
    **adamw: Any,
) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the matrices of the blocks if ``matrix_lr`` is given.

    Args:
        masters: what is stepped in place of each of the model's trained parameters, in order.
        matrix_lr: rate of Muon; ``None``: AdamW for the matrices too.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for name, master in zip(names, masters, strict=True):
        inside = matrix_lr is not None and "layers." in name and master.ndim == 2
        (matrices if inside else others).append(master)
    chosen: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=lr, **adamw)]
    if matrices:
        chosen.append(Muon(matrices, lr=matrix_lr or 0.0, weight_decay=matrix_decay))
    return chosen


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024) with PyTorch's hyperparameters and state.

    PyTorch orthogonalises each matrix by itself and in bfloat16. A CPU without instructions for
    bfloat16 takes longer for that than for the gradients of a small model. Here matrices of one
    shape are orthogonalised together, in the precision of their gradients.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step over all parameters that have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for parameters in shapes.values():
                self._step(parameters, group)

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """One step over parameters of one shape."""
        updates = []
        for parameter in parameters:
            gradient, state = parameter.grad, self.state[parameter]
            assert gradient is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
            updates.append(
                gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
            )
        steps, epsilon = group["ns_steps"], group["eps"]
        found = orthogonalized(torch.stack(updates), group["ns_coefficients"], steps, epsilon)
        # A tall matrix moves further, as in the first publication. PyTorch has more such rules.
        rows, columns = parameters[0].shape
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        for parameter, update in zip(parameters, found, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalized(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float
) -> Tensor:
    """Matrices [n, r, c] with the same singular vectors and all singular values near 1.

    By Newton-Schulz iteration with a quintic polynomial; no norm below ``epsilon`` is divided by.
    """
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    # singular values of at most 1, or the iteration would diverge
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=epsilon)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
