"""Whether vLLM samples with the weights that were trained: sums over all of them, compared.

vLLM fuses matrices and pads embeddings with zeros, so tensors cannot be compared one by one, but
sums over the whole model stay the same. A failed update of weights would otherwise go unnoticed:
the run goes on with old weights and still ends well.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch


class Sums(NamedTuple):
    """Sums in float64, in which those of bfloat16 values are exact enough to be compared."""

    plain: float
    absolute: float
    squared: float

    def __add__(self, other: Any) -> Sums:
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def equal(self, other: Sums) -> bool:
        """Whether both can be of the same weights; NaN never are."""
        scale = self.absolute
        return (
            math.isclose(self.absolute, other.absolute, rel_tol=1e-9)
            and math.isclose(self.squared, other.squared, rel_tol=1e-9)
            and math.isclose(self.plain, other.plain, rel_tol=1e-9, abs_tol=1e-9 * scale)
        )


class StaleWeightsError(RuntimeError):
    """vLLM does not sample with the trained weights."""


def zero_sums() -> Sums:
    """Of no weights."""
    return Sums(0.0, 0.0, 0.0)


CHUNK = 2**24
"""values that are in float64 at a time: 128 MiB, where a large embedding would take gigabytes"""


@torch.no_grad()
def sums_of(tensor: torch.Tensor) -> Sums:
    """Sums over one tensor, a chunk of it at a time."""
    total = torch.zeros(3, dtype=torch.float64, device=tensor.device)
    for part in tensor.detach().reshape(-1).split(CHUNK):
        values = part.to(torch.float64, copy=True)
        total += torch.stack([values.sum(), values.abs_().sum(), values.square_().sum()])
    return Sums(*total.tolist())


def require_equal(trained: Sums, sampled: list[Sums], update: int) -> None:
    """Raises ``StaleWeightsError`` unless every engine has the trained weights."""
    for number, sums in enumerate(sampled):
        if not trained.equal(sums):
            raise StaleWeightsError(
                f"After update {update}, vLLM engine {number} does not have the trained weights: their "
                f"sum of absolute values is {trained.absolute:.9g}, the engine's {sums.absolute:.9g}. "
                "It would sample with old or broken weights. Look for errors of the weight update in the "
                "engine's log; the last checkpoint is sound."
            )
