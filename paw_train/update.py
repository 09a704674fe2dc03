"""One update: trajectories -> advantages and world-model weights -> optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paw_train.advantages import grpo
from paw_train.config import AlgorithmSettings, OptimizerSettings
from paw_train.objective import (
    MicroBatch,
    MiniBatchTotals,
    ObjectiveSettings,
    combined_loss,
    merge_metrics,
)
from paw_train.policies.local import LocalPolicy
from paw_train.rollout import Trajectory
from paw_train.tokens import TokenBatch, TokenRow, collate, micro_batches
from paw_train.world_model import action_entropy, adaptive_weight, plan_update


@dataclass(slots=True)
class Experience:
    """The pool P of one update, N transitions in all, with what each is worth."""

    rows: list[TokenRow]
    advantages: Tensor
    """[N]"""
    wm_weights: Tensor
    """[N] the w_i of spec section 2 (zeros when the world model is off)"""
    lengths: Tensor
    """[N, 2] tokens of action and observation"""
    metrics: dict[str, float]


def prepare(
    trajectories: Sequence[Trajectory],
    algorithm: AlgorithmSettings,
    objective: ObjectiveSettings,
    max_return: float,
) -> Experience:
    """Advantages over episodes and world-model weights over the whole update's pool.

    Episodes that failed by an error of the environment are left out.

    Args:
        trajectories: the episodes of one rollout, all groups.
        algorithm: how returns become advantages.
        objective: holds the world-model settings.
        max_return: R_max.

    Raises:
        ValueError: no episode is left.
    """
    good = [t for t in trajectories if t.episode.error is None and t.episode.transitions]
    if not good:
        raise ValueError(
            "Every episode of the rollout failed in its environment; the first traceback:\n"
            + str(trajectories[0].episode.error if trajectories else "no episodes")
        )
    numbers = {g: i for i, g in enumerate(sorted({t.episode.group for t in good}))}
    groups = torch.tensor([numbers[t.episode.group] for t in good])
    returns = torch.tensor([t.episode.total_reward for t in good], dtype=torch.float64)
    per_episode = grpo(returns, groups, normalize=algorithm.normalize).float()
    steps = [(i, step) for i, t in enumerate(good) for row in t.rows for step in row.steps]
    for index, (_, step) in enumerate(steps):
        step.index = index
    owner = torch.tensor([i for i, _ in steps])
    lengths = torch.tensor(
        [(s.action[1] - s.action[0], s.observation[1] - s.observation[0]) for _, s in steps]
    )
    entropy = _entropies([step.logprobs for _, step in steps])
    sums = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, groups, returns)
    means = sums / torch.bincount(groups, minlength=len(numbers))
    plan = plan_update(objective.wm, entropy, groups[owner], means, max_return)
    metrics = plan.metrics(entropy)
    # lambda is a property of the rollout: logged for runs without PaW too
    metrics["lambda_mean"] = adaptive_weight(means, max_return).mean().item()
    advantages = per_episode[owner]
    if algorithm.weighting == "episode":
        # the surrogate is linear in the advantage, clip included: scaling it weighs the tokens
        tokens = torch.zeros(len(good)).index_add_(0, owner, lengths[:, 0].float())
        advantages = advantages * (tokens.mean() / tokens)[owner]
    rows = [row for t in good for row in t.rows]
    return Experience(rows, advantages, plan.weights.float(), lengths, metrics)


def _entropies(logprobs: Sequence[Sequence[float]]) -> Tensor:
    """[N] action entropies from the log-probabilities at sampling time."""
    width = max(len(values) for values in logprobs)
    table = torch.zeros(len(logprobs), width)
    mask = torch.zeros(len(logprobs), width, dtype=torch.bool)
    for i, values in enumerate(logprobs):
        table[i, : len(values)] = torch.tensor(values)
        mask[i, : len(values)] = True
    return action_entropy(table, mask)


class Updater:
    """Owns the optimiser and turns experience into optimiser steps.

    Args:
        policy: the model being trained.
        reference: the policy that KL is measured to; needed when ``kl_coef > 0``.
        optimizer: settings of AdamW and of the cutting.
        objective: settings of the loss.
        temperature: of the rollout.
        updates: updates in the whole run, for the schedule.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        reference: LocalPolicy | None,
        optimizer: OptimizerSettings,
        objective: ObjectiveSettings,
        temperature: float,
        updates: int,
    ) -> None:
        self.policy, self.reference = policy, reference
        self.settings, self.objective = optimizer, objective
        self.temperature, self.updates = temperature, updates
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
        )

    def learning_rate(self, update: int) -> float:
        """The learning rate of an update (0-based)."""
        s = self.settings
        if update < s.warmup_updates:
            return s.lr * (update + 1) / s.warmup_updates
        done = (update - s.warmup_updates) / max(1, self.updates - s.warmup_updates)
        fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}
        return s.lr * (1 - (1 - s.final_lr) * fall[s.schedule])

    def step(self, experience: Experience, update: int, seed: int) -> dict[str, float]:
        """All optimiser steps of one update; returns the metrics, averaged over them."""
        lr = self.learning_rate(update)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        # dropout stays off: the ratio compares with the policy that sampled, which had none
        self.policy.model.eval()
        collected: list[dict[str, float]] = []
        for rows in _minibatches(experience.rows, self.settings.minibatches, seed):
            collected.append(self._minibatch(rows, experience))
        names = {name for metrics in collected for name in metrics}
        averaged = {
            name: sum(m[name] for m in collected if name in m) / len(collected) for name in names
        }
        return {**averaged, "lr": lr}

    def _minibatch(self, rows: Sequence[TokenRow], experience: Experience) -> dict[str, float]:
        index = torch.tensor([step.index for row in rows for step in row.steps])
        totals = MiniBatchTotals.count(
            len(experience.advantages),
            experience.lengths[index, 0],
            experience.lengths[index, 1],
            experience.wm_weights[index],
        )
        self.adamw.zero_grad(set_to_none=True)
        apart: dict[str, list[Tensor]] = {"policy": [], "wm": []}
        parts = []
        for group in micro_batches(rows, self.settings.micro_batch_tokens):
            batch = collate(group, self.policy.pad_id).to(self.policy.device)
            output = combined_loss(
                self.policy.logprobs(batch, self.temperature),
                self._inputs(batch, experience),
                totals,
                self.objective,
            )
            if self.settings.measure_gradients:
                self._measure(output.policy_loss, apart["policy"])
                if output.wm_loss is not None:
                    self._measure(output.wm_loss, apart["wm"])
            output.loss.backward()
            parts.append(output.metrics)
        metrics = merge_metrics(parts)
        metrics |= {f"grad_norm_{k}": _norm(v) for k, v in apart.items() if v}
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        if not torch.isfinite(norm):
            self.adamw.zero_grad(set_to_none=True)
            return {**metrics, "skipped": 1.0}
        self.adamw.step()
        return {**metrics, "grad_norm": norm.item(), "skipped": 0.0}

    def _inputs(self, batch: TokenBatch, experience: Experience) -> MicroBatch:
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = self.reference.logprobs(batch, self.temperature)
        index = batch.index.cpu()
        device = batch.input_ids.device
        return MicroBatch(
            action_mask=batch.action_mask,
            advantages=experience.advantages[index].to(device),
            old_logprobs=batch.old_logprobs,
            observation_mask=batch.observation_mask,
            ref_logprobs=reference,
            wm_weights=experience.wm_weights[index].to(device),
        )

    def _measure(self, loss: Tensor, sums: list[Tensor]) -> None:
        """Adds the gradient of one term to ``sums``, leaving the parameters' own alone."""
        if not loss.requires_grad:
            return
        grads = torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)
        filled = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self.parameters, grads, strict=True)
        ]
        sums[:] = [a + b for a, b in zip(sums, filled, strict=True)] if sums else filled

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state."""
        return self.adamw.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.adamw.load_state_dict(state)


def _norm(gradients: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients))


def _minibatches(rows: Sequence[TokenRow], count: int, seed: int) -> Iterator[list[TokenRow]]:
    """Cuts the rows, shuffled by ``seed``, into ``count`` parts of nearly equal size."""
    if count == 1:
        yield list(rows)
        return
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator)
    for part in order.tensor_split(min(count, len(rows))):
        yield [rows[i] for i in part.tolist()]
