"""Settings of the cluster engine: which GPUs do what, and how they are used."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from paw_train.settings.base import Count, Group, Positive


class OpenRLHFSettings(Group):
    """The layout of a run on OpenRLHF (``engine: openrlhf``).

    It does not change what is learned, except for ``old_logprobs``. Batch sizes, learning rates and losses
    are the ordinary settings of a run.
    """

    nodes: Positive = 1
    """number of machines in the Ray cluster"""
    gpus_per_node: Positive = 8
    """number of GPUs per machine"""
    colocate: Literal["all", "actor_ref", "none"] = "all"
    """how GPUs are shared: ``all``: policy, reference, critic and vLLM take turns on the same GPUs;
    ``actor_ref``: policy and reference share ``gpus_per_node`` GPUs, vLLM has its own, and a critic has as
    many again; ``none``: each has its own"""
    engines: Positive | None = None
    """number of vLLM engines; null: with ``colocate: all`` as many as fit, otherwise one"""
    tensor_parallel: Positive = 1
    """number of GPUs over which one vLLM engine is split"""
    environment_workers: Positive = 1
    """number of processes beside each vLLM engine that run the environments, prompts and tokenizers of its
    episodes"""
    zero_stage: Literal[2, 3] = 2
    """stage of DeepSpeed's ZeRO: 2 shards optimizer state and gradients over the GPUs, 3 also the weights"""
    adam_offload: bool = False
    """whether the optimizer's state and the float32 master weights are kept in CPU memory"""
    checksum_every: Count | None = None
    """number of updates between comparisons of vLLM's weights with the trained ones, including the first
    update; 0: never; null: every 10 updates, or never if ``tensor_parallel`` splits every engine"""
    old_logprobs: Literal["actor", "rollout"] = "actor"
    """source of the sampled tokens' log-probabilities for the ratio and the action entropy: ``actor``
    recomputes them in the trainer's own arithmetic, ``rollout`` takes vLLM's"""
    gpu: str = "h100"
    """kind of GPU for which ``paw train --plan`` estimates memory, for either engine, and into which a run on
    a cluster must fit"""
    extra: dict[str, Any] = {}
    """further options of ``openrlhf.cli.train_ppo_ray``, by name, without leading dashes"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        chosen = (self.engines or 0) * self.tensor_parallel
        if self.colocate == "all" and chosen not in (0, self.ranks):
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

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the policy: one per GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def updates_between_checksums(self) -> int:
        """``checksum_every``, with the default resolved."""
        if self.checksum_every is not None:
            return self.checksum_every
        return 10 if self.tensor_parallel == 1 else 0

    @property
    def vllm_engines(self) -> int:
        """Number of engines, with the default resolved."""
        if self.engines is not None:
            return self.engines
        return self.ranks // self.tensor_parallel if self.colocate == "all" else 1
