"""The optimizer step of everything that learns: policy, critic, warm start and world model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from paw_train.policies.local.mixed_precision import MasterWeights


class TrainingDivergedError(ValueError):
    """Losses, gradients or weights stopped being finite; nothing was saved since."""


class GuardedStep:
    """Clips gradients and steps optimizers, and leaves out a step whose gradient is not finite.

    Args:
        weights: those that learn.
        optimizers: of their master copies.
        max_norm: the gradient's norm is scaled down to it.
        max_skipped: number of steps in a row that may be left out.
        rate: the setting of the learning rate, which the error names.
    """

    def __init__(
        self,
        weights: MasterWeights,
        optimizers: Sequence[torch.optim.Optimizer],
        max_norm: float,
        max_skipped: int,
        rate: str,
    ) -> None:
        self.weights, self.optimizers = weights, optimizers
        self.max_norm, self.max_skipped, self.rate = max_norm, max_skipped, rate
        self.skipped = 0
        """number of steps left out since the last good one; nothing is saved unless it is 0"""

    def __call__(self) -> float:
        """One step on the gradients that there are; returns their norm before clipping.

        A norm that is not finite says that the step was left out.

        Raises:
            TrainingDivergedError: too many in a row were.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.weights.masters, self.max_norm).item()
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                optimizer.step()
            self.weights.write_back()
            self.skipped = 0
            return norm
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.skipped += 1
        if self.skipped > self.max_skipped:
            self.require_good()
        return norm

    def require_good(self) -> None:
        """Raises ``TrainingDivergedError`` if the last step was left out."""
        if self.skipped:
            raise TrainingDivergedError(
                f"The last {self.skipped} optimizer steps in a row had a loss or gradient that is not "
                f"finite (optimizer.max_skipped={self.max_skipped}), and nothing was saved since. Run it "
                f"again with a lower {self.rate}: it goes on from what was saved before."
            )
