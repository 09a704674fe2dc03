"""Settings of the cluster engine: which GPUs do what, and how they are used."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import Count, Number, Positive


class OpenRLHFSettings(Group):
    """How OpenRLHF is laid out (``engine: openrlhf``); nothing here changes what is learned.

    The exception is ``old_logprobs``. Batch sizes, learning rates and losses are the ordinary
    settings of a run.
    """

    nodes: Positive = 1
    """machines of the Ray cluster"""
    gpus_per_node: Positive = 8
    """GPUs of each"""
    colocate: Literal["all", "actor_ref", "none"] = "all"
    """``all``: policy, reference, critic and vLLM take turns on the same GPUs; ``actor_ref``: policy and
    reference share ``gpus_per_node`` GPUs, vLLM has its own, a critic as many again; ``none``: each has
    its own"""
    engines: Positive | None = None
    """vLLM engines; null: with ``colocate: all`` as many as fit, else one"""
    tensor_parallel: Positive = 1
    """GPUs that one vLLM engine is split over"""
    gpu_memory: Annotated[Number, Interval(gt=0, lt=1)] = 0.5
    """share of a GPU's memory that vLLM takes; up to 0.9 where it has the GPU to itself"""
    max_resident_episodes: Positive | None = None
    """episodes that one vLLM engine runs at a time; null: all that it is given"""
    enforce_eager: bool = False
    """no CUDA graphs in vLLM: a faster start, slower tokens"""
    prefix_caching: bool = True
    """vLLM keeps the work on a dialogue from turn to turn"""
    zero_stage: Literal[2, 3] = 2
    """DeepSpeed: 2 splits optimiser and gradients over the GPUs, 3 the weights as well"""
    adam_offload: bool = False
    """the optimiser's state and the float32 master weights are kept in CPU memory"""
    packing: bool | None = None
    """sequences of a micro-batch in one row without padding, which needs flash-attn; null: wherever
    ``model.attention`` is flash attention, as it is by default on a cluster"""
    liger: bool = False
    """Liger kernels in the model"""
    sync_backend: Literal["nccl", "gloo"] = "nccl"
    """sends new weights to vLLM: ``nccl``, or ``gloo`` without GPUs"""
    checksum_every: Count | None = None
    """updates between comparisons of vLLM's weights with the trained ones, the first update's included;
    0: never; null: every 10 updates, and never where ``tensor_parallel`` leaves no engine whole"""
    old_logprobs: Literal["actor", "rollout"] = "actor"
    """log-probabilities of the sampled tokens that the ratio and the action entropy are taken from:
    ``actor`` computes them once more in the trainer's own arithmetic, ``rollout`` takes vLLM's"""
    restarts: Count = 3
    """times a run goes on by itself from its last checkpoint after one of its processes died"""
    gpu: str = "h100"
    """the kind of GPU that ``--plan`` reckons with, of either engine, and that a run on a cluster must fit"""
    extra: dict[str, Any] = {}
    """further options of ``openrlhf.cli.train_ppo_ray``, by their names without dashes in front"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.colocate == "all" and self.engines is not None and self._spare():
            raise ValueError(
                f"openrlhf.engines={self.engines} of {self.tensor_parallel} GPUs each, but with "
                f"openrlhf.colocate=all they cover the policy's {self.ranks} GPUs exactly: use "
                f"{self.ranks // self.tensor_parallel} engines, or null."
            )
        if self.colocate == "all" and self.ranks % self.tensor_parallel:
            raise ValueError(
                f"openrlhf.tensor_parallel={self.tensor_parallel} does not divide the {self.ranks} "
                "GPUs that vLLM shares with the policy (openrlhf.colocate=all)."
            )
        return self

    def _spare(self) -> int:
        return self.ranks - (self.engines or 0) * self.tensor_parallel

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the policy: one a GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def updates_between_checksums(self) -> int:
        """``checksum_every``, with the default worked out."""
        if self.checksum_every is not None:
            return self.checksum_every
        return 10 if self.tensor_parallel == 1 else 0

    @property
    def vllm_engines(self) -> int:
        """Engines, with the default worked out."""
        if self.engines is not None:
            return self.engines
        return self.ranks // self.tensor_parallel if self.colocate == "all" else 1
