"""The optimizer step of everything that learns: policy, critic, warm start and world model.

bfloat16 has 8 bits of precision: a step of less than about 1/256 of a weight is rounded away, and
reinforcement learning takes steps of a millionth. The optimizer therefore works on float32 copies of narrow
weights, and the model's weights are these, rounded (Micikevicius et al. 2018, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

_NARROW = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Float32 copies that an optimizer steps instead of a model's narrow parameters.

    Gradients of narrow parameters are moved to their copies as each backward pass ends with them, so
    that sums over micro-batches are taken in float32. Parameters that are wide already stand for
    themselves; without narrow ones, nothing here does anything.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.masters = [
            p.detach().float().requires_grad_() if p.dtype in _NARROW else p
            for p in self.parameters
        ]
        """one for each parameter: give these to the optimiser, and clip the gradients of these"""
        both = zip(self.parameters, self.masters, strict=True)
        self._pairs = [(p, m) for p, m in both if p is not m]
        self._hooks: list[RemovableHandle] = []
        for parameter, master in self._pairs:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(_mover(master)))

    @torch.no_grad()
    def write_back(self) -> None:
        """Rounds the copies into the model: call it after each optimiser step."""
        for parameter, master in self._pairs:
            parameter.copy_(master)

    def state_dict(self) -> list[Tensor]:
        """The copies themselves, which go on changing; empty if nothing is narrow.

        As in PyTorch's own state dicts, so that saving them takes no second set of them on the GPU.
        """
        return [master.detach() for _, master in self._pairs]

    def load_state_dict(self, state: Sequence[Tensor]) -> None:
        """Inverse of ``state_dict``; the model's weights follow."""
        if len(state) != len(self._pairs):
            raise ValueError(
                f"The state has float32 copies of {len(state)} weights, the model has {len(self._pairs)} "
                "weights of less precision: model.dtype differs."
            )
        with torch.no_grad():
            for (_, master), saved in zip(self._pairs, state, strict=True):
                master.copy_(saved)
        self.write_back()

    def close(self) -> None:
        """Leaves the model's parameters to themselves."""
        for hook in self._hooks:
            hook.remove()


def _mover(master: Tensor) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        wide = parameter.grad.float()
        master.grad = wide if master.grad is None else master.grad.add_(wide)
        parameter.grad = None

    return move


MAX_SKIPPED = 3
"""steps in a row that may be left out"""


class TrainingDivergedError(ValueError):
    """Losses, gradients or weights stopped being finite; nothing has been saved since."""


class GuardedStep:
    """Clips gradients and steps optimizers, and leaves out a step whose gradient is not finite.

    Args:
        max_norm: the gradient's norm is scaled down to it.
        rate: the setting of the learning rate, which the error names.
    """

    def __init__(
        self,
        weights: MasterWeights,
        optimizers: Sequence[torch.optim.Optimizer],
        max_norm: float,
        rate: str,
    ) -> None:
        self.weights, self.optimizers = weights, optimizers
        self.max_norm, self.rate = max_norm, rate
        self.skipped = 0
        """number of steps left out since the last good one; nothing is saved unless it is 0"""

    def __call__(self) -> float:
        """One step, left out if the gradient's norm is not finite; returns that norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.weights.masters, self.max_norm).item()
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                optimizer.step()
            self.weights.write_back()
            self.skipped = 0
            return norm
        self.skipped += 1
        if self.skipped > MAX_SKIPPED:
            self.require_good()
        return norm

    def require_good(self) -> None:
        """Raises ``TrainingDivergedError`` if the last step was left out."""
        if self.skipped:
            raise TrainingDivergedError(
                f"The last {self.skipped} optimizer steps in a row had a loss or gradient that is not "
                f"finite, and nothing was saved since. Run it again with a lower {self.rate}: it goes on "
                "from what was saved before, or with --fresh from the start."
            )
