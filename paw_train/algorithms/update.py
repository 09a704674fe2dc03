"""One update: what the pool's transitions are worth -> optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Experience, Pool, Signals
from paw_train.losses.objective import (
    MicroBatch,
    MiniBatchTotals,
    ObjectiveSettings,
    combined_loss,
    merge_metrics,
)
from paw_train.policies.local.guarded_step import GuardedStep, MasterWeights
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.reference import Reference
from paw_train.rollouts.scoring import batches
from paw_train.rollouts.tokens import TokenBatch, TokenRow
from paw_train.settings import OptimizerSettings, WorldModelSettings


class Updater:
    """Owns the optimiser and turns experience into optimiser steps.

    Args:
        policy: the model being trained.
        reference: the policy that KL is measured to; needed when ``kl_coef > 0``.
        optimizer: settings of AdamW and of micro- and mini-batches.
        objective: settings of the loss.
        world_model: settings of the world-model term.
        temperature: of the rollout.
        updates: updates in the whole run, for the schedule.
        critic: PPO's, trained beside the policy.
        rate: the setting that ``optimizer.lr`` is from, for errors.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        reference: Reference | None,
        optimizer: OptimizerSettings,
        objective: ObjectiveSettings,
        world_model: WorldModelSettings,
        temperature: float,
        updates: int,
        critic: Critic | None = None,
        rate: str = "optimizer.lr",
    ) -> None:
        self.policy, self.reference, self.critic = policy, reference, critic
        self.settings, self.objective, self.world_model = optimizer, objective, world_model
        self.temperature, self.updates = temperature, updates
        self.weights = MasterWeights([p for p in policy.model.parameters() if p.requires_grad])
        self.parameters = self.weights.masters
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
            fused=True,  # one pass over the weights, where the stock loop makes about ten
        )
        self.guarded_step = GuardedStep(
            self.weights, [self.adamw], optimizer.max_grad_norm, optimizer.max_skipped, rate
        )

    def learning_rate(self, update: int) -> float:
        """The learning rate of an update (0-based)."""
        return scheduled_rate(self.settings, update, self.updates)

    def step(self, experience: Experience, update: int, seed: int) -> dict[str, float]:
        """All optimiser steps of one update; returns the metrics, averaged over them."""
        lr = self.learning_rate(update)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        # dropout stays off: the ratio compares with the policy that sampled, which had none
        self.policy.model.eval()
        collected: list[dict[str, float]] = []
        count = optimizer_steps(self.settings, len(experience.rows))
        for rows in minibatches(experience.rows, count, seed):
            metrics: dict[str, float] = {}
            if self.critic is not None:
                assert experience.value_targets is not None and experience.old_values is not None
                metrics |= self.critic.step(rows, experience.value_targets, experience.old_values)
                self.critic.adamw.zero_grad(set_to_none=True)  # memory that the policy needs next
            if self.critic is None or update >= self.critic.settings.warmup_updates:
                metrics |= self._minibatch(rows, experience, count)
            collected.append(metrics)
        return {**averaged(collected), "lr": lr}

    @property
    def steps(self) -> list[GuardedStep]:
        """Of policy and critic; after a step that was left out, nothing may be saved."""
        return [self.guarded_step, *([self.critic.guarded_step] if self.critic is not None else [])]

    def release(self) -> None:
        """Gives back the memory of gradients, and of an offloaded reference, until the next update."""
        self.adamw.zero_grad(set_to_none=True)
        if self.reference is not None:
            self.reference.offload()

    @torch.no_grad()
    def signals(self, pool: Pool) -> Signals:
        """The forward passes over the pool that the settings need before advantages."""
        count = len(pool.steps)
        signals = Signals()
        if self.critic is not None:
            signals.values = self.critic.values(pool.rows, count)
        if self.objective.kl_in == "reward" and self.objective.kl_coef > 0:
            longest = max(step.action[1] - step.action[0] for step in pool.steps)
            signals.kl = torch.zeros(count, longest)
        if self.world_model.enabled and self.world_model.entropy == "full":
            signals.entropy = torch.zeros(count)
        if signals.kl is None and signals.entropy is None:
            return signals
        self.policy.model.eval()
        for batch in batches(self.policy, pool.rows, self.settings.micro_batch_tokens):
            mask, index = batch.action_mask, batch.index.cpu()
            if signals.kl is not None:
                ratio = batch.old_logprobs - self._reference(batch)
                width = int(mask.sum(-1).max())  # actions begin in column 1
                known = torch.where(mask, ratio, 0.0)[:, 1 : 1 + width]
                signals.kl[index, :width] = known.float().cpu()
            if signals.entropy is not None:
                actions = batch.actions_only()
                _, entropy = self.policy.logprobs(actions, self.temperature, entropy=True)
                mean = (entropy * mask).sum(-1) / mask.sum(-1).clamp(min=1)
                signals.entropy[index] = mean.float().cpu()
        return signals

    def _reference(self, batch: TokenBatch) -> Tensor:
        if self.reference is None:
            raise ValueError(
                f"`kl_coef` is {self.objective.kl_coef}, which needs a reference policy."
            )
        with torch.no_grad():
            return self.reference.logprobs(batch.actions_only(), self.temperature)

    def _minibatch(
        self, rows: Sequence[TokenRow], experience: Experience, count: int
    ) -> dict[str, float]:
        totals = minibatch_totals(rows, experience, count)
        self.adamw.zero_grad(set_to_none=True)
        apart: dict[str, list[Tensor]] = {"policy": [], "wm": []}
        parts = []
        for batch in batches(self.policy, rows, self.settings.micro_batch_tokens):
            parts.append(self._micro_batch(batch, experience, totals, apart))
        metrics = merge_metrics(parts)
        norms = {f"grad_norm_{k}": _norm(v) for k, v in apart.items() if v}
        metrics |= norms
        norm = self.guarded_step()
        return {**metrics, "grad_norm": norm, "skipped": float(not math.isfinite(norm))}

    def _micro_batch(
        self,
        batch: TokenBatch,
        experience: Experience,
        totals: MiniBatchTotals,
        apart: dict[str, list[Tensor]],
    ) -> dict[str, Tensor]:
        """Adds the gradient of some rows and returns their share of the metrics."""
        entropy = None
        if self.objective.entropy_coef > 0:
            logprobs, entropy = self.policy.logprobs(batch, self.temperature, entropy=True)
        else:
            logprobs = self.policy.logprobs(batch, self.temperature)
        inputs = self._inputs(batch, experience, entropy)
        output = combined_loss(logprobs, inputs, totals, self.objective, self.world_model)
        if self.settings.measure_gradients:
            self._measure(output.policy_loss, apart["policy"])
            if output.wm_loss is not None:
                self._measure(output.wm_loss, apart["wm"])
        output.loss.backward()
        return output.metrics

    def _inputs(
        self, batch: TokenBatch, experience: Experience, entropy: Tensor | None
    ) -> MicroBatch:
        in_loss = self.objective.kl_in == "loss" and self.reference is not None
        reference = self._reference(batch) if in_loss else None
        return loss_inputs(batch, experience, reference, entropy)

    def _measure(self, loss: Tensor, sums: list[Tensor]) -> None:
        """Adds the gradient of one term to ``sums``, leaving the parameters' own alone."""
        if not loss.requires_grad:
            return
        grads = torch.autograd.grad(
            loss, self.weights.parameters, retain_graph=True, allow_unused=True
        )
        filled = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self.weights.parameters, grads, strict=True)
        ]
        sums[:] = [a + b for a, b in zip(sums, filled, strict=True)] if sums else filled

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and critic, after a step that was not left out."""
        critic = None if self.critic is None else self.critic.state_dict()
        return {
            "adamw": self.adamw.state_dict(),
            "masters": self.weights.state_dict(),
            "critic": critic,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.adamw.load_state_dict(state["adamw"])
        self.weights.load_state_dict(state["masters"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])


def averaged(collected: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each metric's mean over the optimiser steps in which it is a finite number."""
    values: dict[str, list[float]] = {}
    for metrics in collected:
        for name, value in metrics.items():
            if math.isfinite(value):
                values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _norm(gradients: Sequence[Tensor]) -> float:
    # one wait for the device in all, and no gradient is copied
    sizes = [
        torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)).double()
        for g in gradients
    ]
    return float(torch.linalg.vector_norm(torch.stack(sizes))) if sizes else 0.0


def scheduled_rate(settings: OptimizerSettings, update: int, updates: int) -> float:
    """The learning rate of an update (0-based) in a run of so many."""
    s = settings
    if update < s.warmup_updates:
        return s.lr * (update + 1) / s.warmup_updates
    done = (update - s.warmup_updates) / max(1, updates - s.warmup_updates)
    fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}
    return s.lr * (1 - (1 - s.final_lr) * fall[s.schedule])


def update_seed(*numbers: int) -> int:
    """The seed of what the numbers name: the run's seed and an update, say."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def optimizer_steps(settings: OptimizerSettings, sequences: int) -> int:
    """Optimiser steps of an update with so many sequences; each step takes at least one."""
    if settings.minibatch_size is None:
        return min(settings.minibatches, sequences)
    return math.ceil(sequences / settings.minibatch_size)


def minibatches(rows: Sequence[TokenRow], count: int, seed: int) -> list[list[TokenRow]]:
    """Splits the rows, shuffled by ``seed``, into ``count`` parts of nearly equal size."""
    if count == 1:
        return [list(rows)]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator)
    return [[rows[i] for i in part.tolist()] for part in order.tensor_split(count)]


def minibatch_totals(
    rows: Sequence[TokenRow], experience: Experience, count: int
) -> MiniBatchTotals:
    """The divisors of the sums of the mini-batch that these rows make up.

    Args:
        rows: of the mini-batch.
        experience: of the whole update.
        count: mini-batches that the update is split into.
    """
    index = torch.tensor([step.index for row in rows for step in row.steps])
    return MiniBatchTotals.count(
        count,
        experience.lengths[index, 0],
        experience.lengths[index, 1],
        experience.wm_weights[index],
    )


def loss_inputs(
    batch: TokenBatch,
    experience: Experience,
    ref_logprobs: Tensor | None,
    entropy: Tensor | None,
) -> MicroBatch:
    """The inputs of one micro-batch's loss, besides the model's output.

    Args:
        batch: rows of the experience.
        experience: holds the advantages and world-model weights that ``batch.index`` points into.
        ref_logprobs: [S, W] under the reference policy; ``None`` without a KL in the loss.
        entropy: [S, W] with gradient; ``None`` without an entropy bonus.
    """
    index = batch.index.cpu()
    device = batch.input_ids.device
    advantages = experience.advantages[index]
    if advantages.ndim == 2:
        by_token = torch.zeros(batch.action_mask.shape)
        width = min(advantages.shape[1], by_token.shape[1] - 1)
        by_token[:, 1 : 1 + width] = advantages[:, :width]
        advantages = by_token
    return MicroBatch(
        action_mask=batch.action_mask,
        advantages=advantages.to(device),
        old_logprobs=batch.old_logprobs,
        observation_mask=batch.observation_mask,
        ref_logprobs=ref_logprobs,
        wm_weights=experience.wm_weights[index].to(device),
        horizon=batch.horizon,
        entropy=entropy,
        importance=batch.importance,
    )
