"""The weights that vLLM is sent, also for a model with an adapter, and the check that it samples with them.

vLLM fuses matrices and pads embeddings with zeros, so tensors cannot be compared one by one, but sums
over the whole model stay the same. A failed update of weights would otherwise go unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """Sums in float64, in which those of bfloat16 values are exact enough to be compared."""

    plain: float
    absolute: float
    squared: float

    def equal(self, other: Sums) -> bool:
        """True if both can be of the same weights; NaN never are."""
        scale = self.absolute
        return (
            math.isclose(self.absolute, other.absolute, rel_tol=1e-9)
            and math.isclose(self.squared, other.squared, rel_tol=1e-9)
            and math.isclose(self.plain, other.plain, rel_tol=1e-9, abs_tol=1e-9 * scale)
        )


class StaleWeightsError(RuntimeError):
    """vLLM does not sample with the trained weights."""


CHUNK = 2**24
"""values that are in float64 at a time: 128 MiB, where a large embedding would take gigabytes"""


@torch.no_grad()
def sums_of(tensors: Iterable[Tensor]) -> Sums:
    """Sums over tensors, a chunk at a time."""
    total: Tensor | float = 0.0
    for tensor in tensors:
        for part in tensor.detach().reshape(-1).split(CHUNK):
            values = part.to(torch.float64, copy=True)
            total += torch.stack([values.sum(), values.abs_().sum(), values.square_().sum()])
    assert isinstance(total, Tensor)
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


LARGEST_GAP = 0.3
"""nats a token by which vLLM's log-probabilities and the trainer's may differ in the mean: their arithmetic
accounts for hundredths"""


class LogprobGapError(RuntimeError):
    """vLLM samples from a distribution other than the one that is trained."""


def require_agreement(gap: float, update: int) -> None:
    """Raises ``LogprobGapError`` unless both engines give the sampled tokens similar log-probabilities."""
    if not gap <= LARGEST_GAP:  # nor does NaN pass
        raise LogprobGapError(
            f"In update {update}, vLLM's log-probabilities of the tokens that it sampled are {gap:.3g} nats "
            f"a token from the trainer's, where {LARGEST_GAP} is the most that both can differ with the same "
            "weights. Nothing was learned from them. Either vLLM has other weights (look for errors of the "
            "weight update in its log; with openrlhf.tensor_parallel=1, openrlhf.checksum_every compares "
            "them), or it computes something else: try openrlhf.extra={vllm.enforce_eager: true}."
        )


PREFIX = "base_model.model."
"""that peft puts before the names of the model below"""


def is_adapted(model: Any) -> bool:
    return hasattr(model, "peft_config")


class AdaptedWeight:
    """One weight with its share of the adapter: a parameter, as far as OpenRLHF's update looks.

    It is worked out when ``data`` is read, so that there is never a second model in memory.
    """

    requires_grad = False

    def __init__(self, weight: Tensor, layer: Any) -> None:
        self.weight, self.layer = weight, layer
        self.shape, self.dtype = weight.shape, weight.dtype

    @property
    def data(self) -> Tensor:
        with torch.no_grad():
            delta = self.layer.get_delta_weight(self.layer.active_adapters[0])
            whole: Tensor = (self.weight.float() + delta.float()).to(self.dtype)
            return whole


class WholeModel:
    """The weights of a model with an adapter, under the names that the model below gives them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """As those of the model below, had it been trained itself."""
        layers = {
            name: module
            for name, module in self.model.named_modules()
            if hasattr(module, "get_delta_weight")
        }
        for name, parameter in self.model.named_parameters():
            if ".lora_" in name:
                continue
            layer = layers.get(name.removesuffix(".base_layer.weight"))
            adapted = layer is not None and name.endswith(".base_layer.weight")
            plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
            yield plain, AdaptedWeight(parameter, layer) if adapted else parameter
