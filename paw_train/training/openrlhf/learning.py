"""An update on data-parallel ranks: its rows sharded, and the local engine's loss of each micro-batch.

Sharding decides memory and speed and nothing else. Advantages, selection and the weights ``w_i`` were
worked out over the whole update before, and every term is divided by totals of its whole mini-batch,
over all ranks and all micro-batches: so the gradients of all micro-batches of all ranks add up to
exactly that of the undivided mini-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paw_train.algorithms.critic import value_count, value_loss
from paw_train.algorithms.update import minibatches, optimizer_steps
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.lm_head_logprobs import TokenScores
from paw_train.losses.objective import LossOutput, combined_loss, merge_metrics
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.rollouts.scoring import batch_logprobs, collate, collated
from paw_train.rollouts.tokens import CONTEXT, TokenRow
from paw_train.settings import ObjectiveSettings, OptimizerSettings, WorldModelSettings


@dataclass(slots=True)
class RankMicroBatch:
    """One forward and backward pass on one rank."""

    batch: Batch
    totals: MiniBatchTotals
    """of the whole mini-batch"""
    last: bool
    """whether the optimiser steps after it"""


def shard_update(
    rows: Sequence[TokenRow], optimizer: OptimizerSettings, ranks: int, seed: int, pad_id: int
) -> list[list[RankMicroBatch]]:
    """The micro-batches of each rank, in order; every rank has equally many.

    Mini-batches are those of the local engine with the same seed. Inside one, rows go to the rank
    that has the fewest tokens so far, longest first. A rank with less to do gets micro-batches of a row
    without a loss, because all ranks must take part in every pass.
    """
    shards: list[list[RankMicroBatch]] = [[] for _ in range(ranks)]
    count = optimizer_steps(optimizer, len(rows))
    for minibatch in minibatches(rows, count, seed):
        groups = [
            collated(share, pad_id, optimizer.micro_batch_tokens) if share else []
            for share in _shares(minibatch, ranks)
        ]
        totals = MiniBatchTotals.count(count, [batch for group in groups for batch in group])
        most = max(map(len, groups))
        for rank, group in enumerate(groups):
            idle = [collate([idle_row(minibatch[0])], pad_id)] * (most - len(group))
            for number, batch in enumerate([*group, *idle]):
                shards[rank].append(RankMicroBatch(batch, totals, number + 1 == most))
    return shards


def _shares(rows: Sequence[TokenRow], ranks: int) -> list[list[TokenRow]]:
    shares: list[list[TokenRow]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += len(row.ids)
    return shares


def idle_row(row: TokenRow) -> TokenRow:
    """A row from which nothing is learned, with the lists of another."""
    short = row.cut(2)
    short.role = [CONTEXT] * 2
    if short.wm_weight is not None:
        short.wm_weight = [0.0] * 2
    return short


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


def micro_batch_value_loss(
    part: RankMicroBatch,
    forward: Callable[[Tensor, Tensor], Tensor],
    level: str,
    device: torch.device,
) -> LossOutput:
    """One micro-batch's share of the mini-batch's value loss.

    ``forward`` takes input ids and attention mask [B, T] and gives values [B, T - 1], at t that before token
    t + 1.
    """
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
        backward: adds the gradient of a loss; gradients are **averaged** over ranks when the
            optimiser steps.
        step: an optimiser step; returns the gradient's norm before clipping.
        gathered: (metrics of this rank) -> metrics of all ranks.

    Returns:
        The metrics of each optimiser step, of the whole mini-batch, equal on every rank.
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
