"""One update: what the pool's transitions are worth -> optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Signals
from paw_train.algorithms.muon import split_optimizers
from paw_train.algorithms.pool import Pool
from paw_train.forks import side_by_side
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import combined_loss, merge_metrics
from paw_train.policies.local.guarded_step import GuardedStep, MasterWeights
from paw_train.rollouts.scoring import collated, read_rows
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import ObjectiveSettings, OptimizerSettings, WorldModelSettings

if TYPE_CHECKING:  # they import transformers, which takes seconds
    from paw_train.policies.local.policy import LocalPolicy, Reference

_FEWEST_SHARED = 4096
"""tokens of a mini-batch that processes share"""


class Updater:
    """Owns the optimiser and turns rows into optimiser steps.

    Args:
        reference: the policy that KL is measured to; needed when ``kl_coef > 0``.
        temperature: of the rollout.
        updates: updates in the whole run, for the schedule.
        critic: PPO's, trained beside the policy.
        rate: the setting that ``optimizer.lr`` comes from, for error messages.
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
        self.optimizers = split_optimizers(
            policy.model,
            self.parameters,
            optimizer.lr,
            optimizer.matrix_lr,
            betas=(0.9, 0.999),
            weight_decay=optimizer.weight_decay,
            fused=True,  # one pass over the weights, where the stock loop makes about ten
        )
        self.peaks = [o.param_groups[0]["lr"] for o in self.optimizers]
        self.guarded_step = GuardedStep(
            self.weights, self.optimizers, optimizer.max_grad_norm, rate
        )

    def step(self, rows: Sequence[TokenRow], update: int, seed: int) -> dict[str, float]:
        """All optimiser steps of one update (from 0); returns the metrics, averaged over them.

        The seed is that of the shuffle into mini-batches.
        """
        share = schedule_share(self.settings, update, self.updates)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
        # dropout stays off: the ratio compares with the policy that sampled, which had none
        self.policy.model.eval()
        collected: list[dict[str, float]] = []
        count = optimizer_steps(self.settings, len(rows))
        for part in minibatches(rows, count, seed):
            metrics: dict[str, float] = {}
            if self.critic is not None:
                metrics |= self.critic.step(part)
                self.critic.adamw.zero_grad(set_to_none=True)  # memory that the policy needs next
            collected.append(metrics | self._minibatch(part, count))
        return {**averaged(collected), "lr": self.settings.lr * share}

    @property
    def steps(self) -> list[GuardedStep]:
        """The steps of policy and critic; after one that was left out, nothing may be saved."""
        return [self.guarded_step, *([self.critic.guarded_step] if self.critic is not None else [])]

    def release(self) -> None:
        """Gives back the memory of gradients, and of an offloaded reference, until the next update."""
        self._forget_gradients()
        if self.reference is not None:
            self.reference.offload()

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def signals(self, pool: Pool) -> Signals:
        """Results of the forward passes over the pool that the settings need before advantages."""
        signals = Signals()
        if self.critic is not None:
            signals.values = pool.at_actions(self.critic.values(pool.rows))
        self.policy.model.eval()
        budget = self.settings.micro_batch_tokens
        if self.objective.kl_in == "reward" and self.objective.kl_coef > 0:
            known = read_rows(self.policy, pool.rows, budget, self._reference)
            signals.kl = pool.logprob - pool.at_actions(known)
        if self.world_model.enabled and self.world_model.entropy == "full":
            found = read_rows(self.policy, pool.rows, budget, self._entropy)
            signals.entropy = pool.action_means(pool.at_actions(found))
        return signals

    def _entropy(self, batch: Batch) -> Tensor:
        """[B, T] entropies at action tokens, up to the last of them."""
        return self.policy.logprobs_and_entropy(batch.actions_only(), self.temperature)[1]

    @torch.no_grad()
    def _reference(self, batch: Batch) -> Tensor:
        """[B, T] the reference's log-probabilities of action tokens."""
        if self.reference is None:
            raise ValueError(
                f"`kl_coef` is {self.objective.kl_coef}, which needs a reference policy."
            )
        known = self.reference.logprobs(batch.actions_only(), self.temperature)
        return torch.nn.functional.pad(known, (0, batch.ids.shape[1] - known.shape[1]))

    def _minibatch(self, rows: Sequence[TokenRow], count: int) -> dict[str, float]:
        shares = self._shares(rows)
        every = [batch for share in shares for kind in share for batch in kind]
        totals = MiniBatchTotals.count(count, every)
        self._forget_gradients()
        apart: dict[str, list[Tensor]] = {"policy": [], "wm": [], "true": []}

        def learn(learned: Sequence[Batch], measured: Sequence[Batch]) -> tuple[Any, Any]:
            parts = [self._micro_batch(batch, totals, apart) for batch in learned]
            with torch.no_grad():
                parts += [self._micro_batch(batch, totals, apart) for batch in measured]
            return parts, [master.grad for master in self.weights.masters]

        found = side_by_side([partial(learn, *share) for share in shares])
        for _, gradients in found[1:]:
            self._add(gradients, 1.0)
        metrics = merge_metrics(part for parts, _ in found for part in parts)
        norms = {f"grad_norm_{k}": _norm(v) for k, v in apart.items() if v}
        if self.world_model.placebo and norms.get("grad_norm_wm"):
            self._add(apart["wm"], norms["grad_norm_true"] / norms["grad_norm_wm"])
        metrics |= {k: v for k, v in norms.items() if k != "grad_norm_true"}
        norm = self.guarded_step()
        return {**metrics, "grad_norm": norm, "skipped": float(not math.isfinite(norm))}

    def _shares(self, rows: Sequence[TokenRow]) -> list[tuple[list[Batch], list[Batch]]]:
        """The batches of each process, to learn from and to measure, with about equally many tokens."""
        few = sum(len(row.ids) for row in rows) < _FEWEST_SHARED
        whole = self.world_model.placebo or self.settings.measure_gradients
        count = 1 if few or whole else self.policy.processes
        learned, measured = self._by_gradient(sorted(rows, key=lambda row: len(row.ids)))
        given = self.policy.pad_id, self.settings.micro_batch_tokens // count
        return [
            (collated(learned[n::count], *given), collated(measured[n::count], *given))
            for n in range(count)
        ]

    def _by_gradient(self, rows: Sequence[TokenRow]) -> tuple[list[TokenRow], list[TokenRow]]:
        """The rows on which a term of the loss has a gradient, and the others: mostly those of groups whose
        returns are all equal. For these a forward pass measures ratios and likelihoods."""
        every = self.objective.entropy_coef > 0 or self.reference is not None
        learns = [every or any(row.advantage or ()) or any(row.wm_weight or ()) for row in rows]
        if not any(learns):
            learns[0] = True  # for a step of gradient zero, in which the optimiser's moments decay
        found = list(zip(rows, learns, strict=True))
        return [row for row, yes in found if yes], [row for row, yes in found if not yes]

    def _micro_batch(
        self, batch: Batch, totals: MiniBatchTotals, apart: dict[str, list[Tensor]]
    ) -> dict[str, Tensor]:
        """Adds the gradient of some rows and returns their share of the metrics."""
        batch, entropy = batch.to(self.policy.device), None
        if self.objective.entropy_coef > 0:
            logprobs, entropy = self.policy.logprobs_and_entropy(batch, self.temperature)
        else:
            logprobs = self.policy.logprobs(batch, self.temperature)
        if self.objective.kl_in == "loss" and self.reference is not None:
            batch = replace(batch, ref_logprob=self._reference(batch))
        output = combined_loss(logprobs, batch, totals, self.objective, self.world_model, entropy)
        if not torch.is_grad_enabled():
            return output.metrics
        if self.settings.measure_gradients:
            self._measure(output.policy_loss, apart["policy"])
        if output.wm_loss is not None and self.world_model.placebo:
            self._measure(output.wm_loss, apart["true"])
            self._measure(self._placebo(batch, totals), apart["wm"])
            output.policy_loss.backward()
            return output.metrics
        if output.wm_loss is not None and self.settings.measure_gradients:
            self._measure(output.wm_loss, apart["wm"])
        output.loss.backward()
        return output.metrics

    def _placebo(self, batch: Batch, totals: MiniBatchTotals) -> Tensor:
        """The world-model term on other transitions' observations."""
        assert batch.placebo_ids is not None
        other = replace(batch, ids=batch.placebo_ids)
        logprobs = self.policy.logprobs(other, self.temperature)
        objective = self.objective.replace(kl_coef=0.0, entropy_coef=0.0)
        loss = combined_loss(logprobs, other, totals, objective, self.world_model).wm_loss
        assert loss is not None
        return loss

    def _add(self, gradients: Sequence[Tensor | None], factor: float) -> None:
        """Adds gradients that were computed apart to the parameters' own."""
        for master, gradient in zip(self.weights.masters, gradients, strict=True):
            if gradient is not None:
                own = 0.0 if master.grad is None else master.grad
                master.grad = own + factor * gradient.to(master.dtype)

    def _measure(self, loss: Tensor, sums: list[Tensor]) -> None:
        """Adds the gradient of one term to ``sums``, leaving the parameters' own alone."""
        if not loss.requires_grad:
            return
        grads = torch.autograd.grad(
            loss, self.weights.parameters, retain_graph=True, materialize_grads=True
        )
        sums[:] = [a + b for a, b in zip(sums, grads, strict=True)] if sums else grads

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and critic, after a step that was not left out."""
        critic = None if self.critic is None else self.critic.state_dict()
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "masters": self.weights.state_dict(),
            "critic": critic,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
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
    # a single wait for the device, and no gradient is copied
    sizes = [
        torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)).double()
        for g in gradients
    ]
    return float(torch.linalg.vector_norm(torch.stack(sizes))) if sizes else 0.0


def schedule_share(settings: OptimizerSettings, update: int, updates: int) -> float:
    """The learning rate of an update (0-based) in a run of ``updates``, as a share of its peak."""
    s = settings
    if update < s.warmup_updates:
        return (update + 1) / s.warmup_updates
    done = (update - s.warmup_updates) / max(1, updates - s.warmup_updates)
    fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}
    return 1 - fall[s.schedule]


def update_seed(*numbers: int) -> int:
    """The seed for what the numbers name, such as the run's seed and an update."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def optimizer_steps(settings: OptimizerSettings, sequences: int) -> int:
    """Optimiser steps of an update with this many sequences; each step takes at least one."""
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
