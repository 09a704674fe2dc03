"""The loss of a micro-batch on a rank, that of the local engine on OpenRLHF's actor; gradient sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paw_train.algorithms.critic import value_count, value_loss
from paw_train.losses.lm_head_logprobs import TokenScores
from paw_train.losses.objective import LossOutput, ObjectiveSettings, combined_loss, merge_metrics
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.rollouts.scoring import batch_logprobs
from paw_train.settings import WorldModelSettings
from paw_train.training.openrlhf.sharding import RankMicroBatch


def sum_in_float32(engine: Any) -> None:
    """Makes DeepSpeed's ZeRO-2 keep its sums in ``grad_accum_dtype``.

    DeepSpeed 0.19.6 reads the option, but keeps the first micro-batch's gradients in the precision of the
    weights and adds the others to them: in bfloat16, 256 + 1 is 256. With the optimiser in the machine's
    memory (``openrlhf.adam_offload``) its sums are different ones, and stay as they are.
    """
    optimizer = engine.optimizer
    narrow = getattr(optimizer, "get_all_grad_tensors", None)
    if narrow is None:  # ZeRO-3 has its own sums, in the type that was asked for
        return

    def wide(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [gradient.to(dtype) for gradient in narrow(tensors, dtype)]

    optimizer.get_all_grad_tensors = wide


Score = Callable[[Tensor, Tensor, Tensor, Tensor, int], TokenScores]
"""(input ids [B, T], attention mask [B, T], numbers ``b * T + t`` of P tokens, temperatures [P],
entropies wanted) -> scores"""


def micro_batch_loss(
    part: RankMicroBatch,
    score: Score,
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
    temperature: float,
    device: torch.device,
) -> LossOutput:
    """One micro-batch's share of the mini-batch's loss."""
    batch = part.batch.to(device)

    def scored(ids: Tensor, tokens: Tensor, temperatures: Tensor, entropies: int) -> TokenScores:
        return score(ids, batch.attention_mask, tokens, temperatures, entropies)

    logprobs, entropy = batch_logprobs(scored, batch, temperature, objective.entropy_coef > 0)
    return combined_loss(logprobs, batch, part.totals, objective, world_model, entropy)


ValueForward = Callable[[Tensor, Tensor], Tensor]
"""(input ids [B, T], attention mask [B, T]) -> values [B, T - 1], that at t before token t + 1"""


def micro_batch_value_loss(
    part: RankMicroBatch,
    forward: ValueForward,
    level: str,
    device: torch.device,
) -> LossOutput:
    """One micro-batch's share of the mini-batch's value loss."""
    batch = part.batch.to(device)
    values = forward(batch.ids, batch.attention_mask).float()
    values = torch.nn.functional.pad(values, (1, 0))  # that before token t at t
    loss = value_loss(values, batch, level) / value_count(part.totals, level)
    return LossOutput(loss, loss, None, {"value_loss": loss.detach()})


def learn(
    parts: Sequence[RankMicroBatch],
    loss_of: Callable[[RankMicroBatch], LossOutput],
    backward: Callable[[Tensor], None],
    step: Callable[[], float],
    gathered: Callable[[list[dict[str, Tensor]]], list[dict[str, Tensor]]],
    ranks: int,
) -> list[dict[str, float]]:
    """All micro-batches of one rank in one update.

    Args:
        loss_of: runs the actor on a micro-batch.
        backward: adds the gradient of a loss; gradients are **averaged** over ranks when the
            optimiser steps.
        step: an optimiser step; returns the gradient's norm before clipping.
        gathered: (metrics of this rank) -> metrics of all ranks.
        ranks: that take part.

    Returns:
        The metrics of each optimiser step, of the whole mini-batch, equal on every rank.

    Raises:
        TrainingDivergedError: a loss or gradient is not finite.
    """
    steps: list[dict[str, float]] = []
    own: list[dict[str, Tensor]] = []
    for part in parts:
        output = loss_of(part)
        own.append({**output.metrics, "loss": output.loss.detach()})
        # the ranks' gradients are averaged, while their losses are shares of one sum
        backward(output.loss * ranks)
        if not part.last:
            continue
        metrics = merge_metrics(gathered(own))
        own = []
        if not math.isfinite(metrics["loss"]):
            raise TrainingDivergedError(_DIVERGED.format("loss", metrics["loss"]))
        norm = step()
        if not math.isfinite(norm):
            raise TrainingDivergedError(_DIVERGED.format("gradient norm", norm))
        steps.append({**metrics, "grad_norm": norm})
    return steps


_DIVERGED = (
    "The {} of an optimiser step is {}. The last checkpoint is from before; resume from it with a lower "
    "optimizer.lr."
)
