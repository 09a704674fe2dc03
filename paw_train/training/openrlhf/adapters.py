"""A model with a LoRA adapter as vLLM is sent it: the adapter worked in, under the names it has without.

OpenRLHF 0.11.2 would send the adapter's own parameters, under names that vLLM does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

PREFIX = "base_model.model."
"""that peft puts before the names of the model below"""


def is_adapted(model: Any) -> bool:
    """Whether peft has wrapped a model."""
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
        """The sum, in the weight's own type."""
        with torch.no_grad():
            delta = self.layer.get_delta_weight(self.layer.active_adapters[0])
            whole: Tensor = (self.weight.float() + delta.float()).to(self.dtype)
            return whole


class WholeModel:
    """The weights of a model with an adapter, under the names that the model below gives them.

    Args:
        model: from peft.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """As of the model below, had it been trained itself."""
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
