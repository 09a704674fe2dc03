"""An update sharded over data-parallel ranks: which rank reads which rows in which micro-batch.

Sharding decides memory and speed and nothing else. Advantages, selection and the weights ``w_i`` were
worked out over the whole update before, and every term is divided by totals of its whole mini-batch,
over all ranks and all micro-batches: so the gradients of all micro-batches of all ranks add up to
exactly that of the undivided mini-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paw_train.algorithms.critic import value_count
from paw_train.algorithms.experience import Experience
from paw_train.algorithms.update import minibatch_totals, minibatches, optimizer_steps
from paw_train.losses.objective import MiniBatchTotals
from paw_train.rollouts.tokens import StepSpans, TokenRow, micro_batches
from paw_train.settings import OptimizerSettings


@dataclass(slots=True)
class RankMicroBatch:
    """One forward and backward pass on one rank."""

    experience: Experience
    """its rows; their steps are numbered anew, into arrays of this micro-batch alone"""
    ref_logprobs: list[Tensor] | None
    """for each row, what ``token_values`` reads; ``None`` without a KL in the loss"""
    totals: MiniBatchTotals
    """of the whole mini-batch"""
    last: bool
    """whether the optimiser steps after it"""
    values: int = 0
    """values of the whole mini-batch that a critic learns; 0 without one"""


def shard_update(
    experience: Experience,
    ref_logprobs: Sequence[Tensor] | None,
    optimizer: OptimizerSettings,
    ranks: int,
    seed: int,
    level: str = "turn",
) -> list[list[RankMicroBatch]]:
    """The micro-batches of each rank, in order; every rank has equally many.

    Mini-batches are those of the local engine with the same seed. Inside one, rows go to the rank
    that has the fewest tokens so far, longest first. A rank with less to do gets micro-batches of a row
    without a loss, because all ranks must take part in every pass.

    Args:
        experience: of the whole update.
        ref_logprobs: for each of its rows, a tensor [T] or shorter, 0 where unknown; or ``None``.
        optimizer: number or size of the mini-batches, and the token budget of a pass.
        ranks: data-parallel ranks.
        seed: of the shuffle.
        level: of the critic's values, where the experience has targets for one.
    """
    place = {id(row): number for number, row in enumerate(experience.rows)}
    shards: list[list[RankMicroBatch]] = [[] for _ in range(ranks)]
    count = optimizer_steps(optimizer, len(experience.rows))
    for rows in minibatches(experience.rows, count, seed):
        totals = minibatch_totals(rows, experience, count)
        values = 0 if experience.value_targets is None else value_count(rows, level)
        shares = _shares(rows, ranks)
        groups = [list(micro_batches(share, optimizer.micro_batch_tokens)) for share in shares]
        most = max(map(len, groups))
        for rank, parts in enumerate(groups):
            parts += [[idle_row(rows[0])] for _ in range(most - len(parts))]
            for number, part in enumerate(parts):
                known = None
                if ref_logprobs is not None:
                    none = torch.zeros(0)
                    known = [ref_logprobs[place[id(r)]] if id(r) in place else none for r in part]
                own = _own(part, experience)
                shards[rank].append(RankMicroBatch(own, known, totals, number + 1 == most, values))
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
    """A row of which nothing is learned."""
    return TokenRow(row.ids[:2], [StepSpans((1, 1), (1, 1), [])])


def _own(rows: Sequence[TokenRow], experience: Experience) -> Experience:
    """The part of an experience that some rows need, with their steps numbered from 0."""
    index = [step.index for row in rows for step in row.steps]
    numbers = iter(range(len(index)))
    renumbered = [
        TokenRow(row.ids, [replace(step, index=next(numbers)) for step in row.steps])
        for row in rows
    ]
    # an idle row has no transition in the pool: its values are zeros
    real = torch.tensor([i >= 0 for i in index], dtype=torch.bool)
    where = torch.tensor(index, dtype=torch.long).clamp(min=0)

    def taken(values: Tensor) -> Tensor:
        mask = real if values.ndim == 1 else real[:, None]
        return torch.where(mask, values[where], torch.zeros((), dtype=values.dtype))

    return Experience(
        renumbered,
        taken(experience.advantages),
        taken(experience.wm_weights),
        taken(experience.lengths),
        {},
        None if experience.value_targets is None else taken(experience.value_targets),
        None if experience.old_values is None else taken(experience.old_values),
    )


def token_values(values: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """[B, T] from one tensor a row, filled up with 0 on the right."""
    result = torch.zeros(shape)
    for b, row in enumerate(values):
        width = min(len(row), shape[1])
        result[b, :width] = row[:width]
    return result
