"""The policy on the ranks of DeepSpeed: our loss in OpenRLHF's actor."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from torch import Tensor

from paw_train.algorithms.update import averaged
from paw_train.training.openrlhf.adapters import WholeModel, is_adapted
from paw_train.training.openrlhf.learning import learn, pass_loss
from paw_train.training.openrlhf.update_cut import Pass
from paw_train.training.openrlhf.weights import Sums, sums_of, zero_sums
from paw_train.training.openrlhf.worker_settings import worker_settings

_Upstream: Any = ppo_actor.PolicyModelActor.__ray_metadata__.modified_class


class PaWActorTrainer(ActorPPOTrainer):
    """Learns from passes instead of OpenRLHF's replay buffer."""

    actor: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = worker_settings()
        self.passes: list[Pass] = []
        self.update = -1
        self.rate = self.run.optimizer.lr

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """All passes of this rank in one update; the metrics are those of all ranks.

        Raises:
            TrainingDivergedError: a loss or gradient is not finite.
        """
        self.actor.train()
        started = time.process_time()
        steps = learn(
            self.passes,
            self._loss,
            lambda loss: self.strategy.backward(loss, self.actor, self.actor_optim),
            self._step,
            gathered,
            dist.get_world_size(),
        )
        self.passes = []
        seconds = time.process_time() - started
        return {**averaged(steps), "lr": self.rate, "seconds_train_cpu": seconds}

    def _loss(self, part: Pass) -> Any:
        # else each pass's gradient would take the place of the one before
        self.actor.model.set_gradient_accumulation_boundary(part.last)
        return pass_loss(
            part,
            self._logits,
            self.run.objective,
            self.run.world_model,
            self.run.rollout.temperature,
            self.tokenizer.pad_token_id,
            torch.device(torch.cuda.current_device()),
        )

    def _logits(self, ids: Tensor, attention: Tensor, places: Tensor) -> Tensor:
        # the actor would temper the observations too, which nobody sampled
        tempered, self.actor.temperature = self.actor.temperature, 1.0
        try:
            output = self.actor(
                ids,
                attention_mask=attention,
                return_output=True,
                ring_attn_group=self.strategy.ring_attn_group,
            )
        finally:
            self.actor.temperature = tempered
        if self.actor.packing_samples:
            # [1, tokens, V]: padding was left out
            places = (attention.flatten().cumsum(0) - 1)[places]
        logits: Tensor = output["logits"].flatten(0, 1).index_select(0, places)
        return logits

    def broadcast_to_vllm(self) -> None:
        """As upstream; of a model with an adapter, the whole model is sent."""
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


def gathered(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The metrics of all ranks, on the CPU."""
    local = [{name: value.detach().cpu() for name, value in part.items()} for part in own]
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, local)
    return [metrics for part in parts for metrics in part]


class PaWPolicyActor(_Upstream):
    """OpenRLHF's policy worker with our trainer in it."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream, whose constructor call names its trainer by a module attribute."""
        ppo_actor.ActorPPOTrainer = PaWActorTrainer
        return super().init_model_from_pretrained(*args, **kwargs)

    def append(self, experience: Any) -> None:
        """Takes a pass for the next update."""
        update = int(experience.info["update"][0])
        if update != self.trainer.update:
            # while a critic learns alone, passes come that nobody learns from
            self.trainer.passes, self.trainer.update = [], update
        self.trainer.passes.append(experience.labels[0])
        self.trainer.rate = float(experience.info["rate"][0])

    def weight_sums(self) -> Sums:
        """Sums over all weights, for the comparison with vLLM's; all ranks must be asked."""
        model = self.actor.model.module
        split = self.strategy.args.ds.zero_stage == 3
        total = zero_sums()
        for _, parameter in (WholeModel(model) if is_adapted(model) else model).named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=split):
                total = total + sums_of(parameter.data)
        return total
