"""An update sharded over data-parallel ranks: which rank reads which rows in which micro-batch.

Sharding decides memory and speed and nothing else. Advantages, selection and the weights ``w_i`` were
worked out over the whole update before, and every term is divided by totals of its whole mini-batch,
over all ranks and all micro-batches: so the gradients of all micro-batches of all ranks add up to
exactly that of the undivided mini-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paw_train.algorithms.update import minibatches, optimizer_steps
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.rollouts.scoring import collate, collated
from paw_train.rollouts.tokens import CONTEXT, TokenRow
from paw_train.settings import OptimizerSettings


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
