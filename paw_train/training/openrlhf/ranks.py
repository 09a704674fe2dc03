"""Policy, critic and reference on the ranks of DeepSpeed: our losses in OpenRLHF's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
from torch import Tensor

from paw_train.algorithms.update import averaged
from paw_train.training.cluster_options import worker_settings
from paw_train.training.openrlhf.chunked_actor import ChunkedActor
from paw_train.training.openrlhf.learning import (
    RankMicroBatch,
    learn,
    micro_batch_loss,
    micro_batch_value_loss,
    sum_in_float32,
)
from paw_train.training.openrlhf.weights import Sums, WholeModel, is_adapted, sums_of
from paw_train.training.phases import BUCKET

_Upstream: Any = ppo_actor.PolicyModelActor.__ray_metadata__.modified_class
_UpstreamReference: Any = launcher.ReferenceModelActor.__ray_metadata__.modified_class
_UpstreamCritic: Any = ppo_critic.CriticModelActor.__ray_metadata__.modified_class
_build_critic = ppo_critic.get_llm_for_sequence_regression


class PaWActorTrainer(ActorPPOTrainer):
    """The policy's: learns from micro-batches instead of OpenRLHF's replay buffer."""

    actor: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = worker_settings()
        sum_in_float32(self.actor.model)
        self.micro_batches: list[RankMicroBatch] = []
        self.update = -1
        self.rate = self.run.optimizer.lr

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """All micro-batches of this rank in one update; the metrics are those of all ranks."""
        self.actor.train()
        started = time.process_time()
        steps = learn(
            self.micro_batches,
            self._loss,
            lambda loss: self.strategy.backward(loss, self.actor, self.actor_optim),
            self._step,
            gathered,
            dist.get_world_size(),
        )
        self.micro_batches = []
        seconds = time.process_time() - started
        return {**averaged(steps), "lr": self.rate, "seconds_train_cpu": seconds}

    def _loss(self, part: RankMicroBatch) -> Any:
        # otherwise each micro-batch's gradient would replace the one before
        self.actor.model.set_gradient_accumulation_boundary(part.last)
        return micro_batch_loss(
            part,
            self.actor.scores,
            self.run.objective,
            self.run.world_model,
            self.run.rollout.temperature,
            torch.device(torch.cuda.current_device()),
        )

    def broadcast_to_vllm(self) -> None:
        """As upstream; for a model with an adapter, the whole model is sent."""
        if not is_adapted(self.actor.model.module):
            super().broadcast_to_vllm()
            return
        actor = self.actor
        self.actor = SimpleNamespace(
            model=SimpleNamespace(module=WholeModel(actor.model.module)),
            is_vlm=getattr(actor, "is_vlm", False),
        )
        try:
            super().broadcast_to_vllm()
        finally:
            self.actor = actor

    def _step(self) -> float:
        for group in self.actor_optim.param_groups:
            group["lr"] = self.rate
        self.strategy.optimizer_step(
            self.actor_optim, self.actor, self.actor_scheduler, name="actor"
        )
        return float(self.strategy.get_grad_norm(self.actor))


class PaWCriticTrainer(CriticPPOTrainer):
    """PPO's value function, in the same way."""

    critic: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = worker_settings()
        sum_in_float32(self.critic)
        self.micro_batches: list[RankMicroBatch] = []

    def ppo_train(self) -> dict[str, float]:
        """All micro-batches of this rank in one update; the metrics are those of all ranks."""
        self.critic.train()  # without which nothing would be checkpointed; there is no dropout
        steps = learn(
            self.micro_batches,
            self._loss,
            lambda loss: self.strategy.backward(loss, self.critic, self.critic_optim),
            self._step,
            gathered,
            dist.get_world_size(),
        )
        self.micro_batches = []
        found = averaged(steps)
        return {"value_loss": found["value_loss"], "grad_norm_value": found["grad_norm"]}

    def _loss(self, part: RankMicroBatch) -> Any:
        # otherwise each micro-batch's gradient would replace the one before
        self.critic.set_gradient_accumulation_boundary(part.last)
        device = torch.device(torch.cuda.current_device())
        return micro_batch_value_loss(part, self._values, self.run.algorithm.level, device)

    def _values(self, ids: Tensor, attention: Tensor) -> Tensor:
        values: Tensor = self.critic(
            ids,
            action_mask=attention[:, 1:],
            attention_mask=attention,
            ring_attn_group=self.strategy.ring_attn_group,
        )
        return values

    def _step(self) -> float:
        self.strategy.optimizer_step(
            self.critic_optim, self.critic, self.critic_scheduler, name="critic"
        )
        return float(self.strategy.get_grad_norm(self.critic))


def average_in_float32(strategy: Any) -> None:
    """Makes OpenRLHF's strategy configure DeepSpeed to average gradients over ranks in float32.

    DeepSpeed copies each bucket for this, so buckets are smaller than its default.
    """
    upstream = strategy.get_ds_train_config

    def config(*args: Any, **kwargs: Any) -> dict[str, Any]:
        chosen: dict[str, Any] = upstream(*args, **kwargs)
        chosen["communication_data_type"] = "fp32"
        chosen["zero_optimization"]["reduce_bucket_size"] = int(BUCKET)
        return chosen

    strategy.get_ds_train_config = config


def gathered(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    local = [{name: value.detach().cpu() for name, value in part.items()} for part in own]
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, local)
    return [metrics for part in parts for metrics in part]


class PaWPolicyActor(_Upstream):
    """OpenRLHF's policy worker with our trainer in it."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream, whose constructor calls name trainer and model by module attributes."""
        average_in_float32(strategy)
        ppo_actor.ActorPPOTrainer = PaWActorTrainer
        ppo_actor.Actor = ChunkedActor
        return super().init_model_from_pretrained(strategy, *args, **kwargs)

    def append(self, experience: Any) -> None:
        update = int(experience.info["update"][0])
        if update != self.trainer.update:
            # while a critic learns alone, micro-batches come that nobody learns from
            self.trainer.micro_batches, self.trainer.update = [], update
        self.trainer.micro_batches.append(experience.labels[0])
        self.trainer.rate = float(experience.info["rate"][0])

    def weight_sums(self) -> Sums:
        """Sums over all weights, for the comparison with vLLM's; all ranks must be asked."""
        model = self.actor.model.module
        split = self.strategy.args.ds.zero_stage == 3

        def whole() -> Iterator[Tensor]:
            for _, p in (WholeModel(model) if is_adapted(model) else model).named_parameters():
                with deepspeed.zero.GatheredParameters([p], enabled=split):
                    yield p.data

        total = sums_of(whole())
        torch.cuda.empty_cache()  # vLLM's key-value cache wakes next and takes what is free
        return total


class PaWReferenceActor(_UpstreamReference):
    """OpenRLHF's reference worker, which scores a chunk of tokens at a time.

    With ``model.reference_offload`` it is on its GPU only while it scores: DeepSpeed itself offloads
    weights under ZeRO-3 alone.
    """

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream, whose constructor call names the model by a module attribute."""
        launcher.Actor = ChunkedActor
        super().init_model_from_pretrained(*args, **kwargs)
        self._offload()

    def execute_batch(self, *args: Any, **kwargs: Any) -> Any:
        if self._offloads:
            self.model.model.module.to(torch.cuda.current_device())
        try:
            return super().execute_batch(*args, **kwargs)
        finally:
            self._offload()

    @property
    def _offloads(self) -> bool:
        args = self.strategy.args
        return bool(args.ref.offload) and args.ds.zero_stage != 3

    def _offload(self) -> None:
        if self._offloads:
            self.model.model.module.to("cpu")
            torch.cuda.empty_cache()


class PaWCriticActor(_UpstreamCritic):
    """OpenRLHF's critic worker with our trainer in it, and a value head that starts at 0."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream, which names trainer and model by module attributes."""
        average_in_float32(strategy)
        ppo_critic.CriticPPOTrainer = PaWCriticTrainer
        ppo_critic.get_llm_for_sequence_regression = critic_from_zero
        return super().init_model_from_pretrained(strategy, *args, **kwargs)

    def append(self, experience: Any) -> None:
        self.trainer.micro_batches.append(experience.labels[0])


def critic_from_zero(*args: Any, **kwargs: Any) -> Any:
    """OpenRLHF's critic whose values are 0 at first, as the local engine's are."""
    model = _build_critic(*args, **kwargs)
    value_head = getattr(model, model.value_head_prefix)
    stage = kwargs["ds_config"]["zero_optimization"]["stage"]
    with deepspeed.zero.GatheredParameters(
        [value_head.weight], modifier_rank=0, enabled=stage == 3
    ):
        torch.nn.init.zeros_(value_head.weight)
    return model
