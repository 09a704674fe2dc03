"""PPO's value function on the ranks of DeepSpeed: our value loss in OpenRLHF's critic."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import ppo_critic
from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
from torch import Tensor

from paw_train.algorithms.update import averaged
from paw_train.training.openrlhf.actor import average_in_float32, gathered
from paw_train.training.openrlhf.learning import learn, micro_batch_value_loss, sum_in_float32
from paw_train.training.openrlhf.mapping import worker_settings
from paw_train.training.openrlhf.sharding import RankMicroBatch

_Upstream: Any = ppo_critic.CriticModelActor.__ray_metadata__.modified_class
_build = ppo_critic.get_llm_for_sequence_regression


class PaWCriticTrainer(CriticPPOTrainer):
    """Learns from micro-batches instead of OpenRLHF's replay buffer."""

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


class PaWCriticActor(_Upstream):
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
    model = _build(*args, **kwargs)
    value_head = getattr(model, model.value_head_prefix)
    stage = kwargs["ds_config"]["zero_optimization"]["stage"]
    with deepspeed.zero.GatheredParameters(
        [value_head.weight], modifier_rank=0, enabled=stage == 3
    ):
        torch.nn.init.zeros_(value_head.weight)
    return model
