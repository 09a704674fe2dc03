"""Faults in the code that the local engine and the OpenRLHF engine share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paw_train.algorithms import group_statistics
from paw_train.losses import objective
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import Surrogate
from paw_train.rollouts import scoring
from paw_train.rollouts.tokens import TokenRow


def planted(fault: str) -> Any:
    """A context in which the shared code has a fault of ``faults.FAULTS``; ``None``: no line here has it."""
    places: dict[str, tuple[Any, str, Any]] = {
        "clip_on_wrong_side": (objective, "clipped_surrogate", _larger_of_both),
        "k1_for_k3": (
            objective,
            "k3_divergence",
            lambda logp, ref, mask: torch.where(mask, logp - ref, 0.0),
        ),
        "population_deviation": (group_statistics, "deviation", _population_deviation),
        "padding_in_mean": (MiniBatchTotals, "count", _counting_padding(MiniBatchTotals.count)),
        "attention_over_padding": (scoring, "collate", _padded_left(scoring.collate)),
    }
    return patch.object(*places[fault]) if fault in places else None


def _larger_of_both(
    logp: Tensor, old: Tensor, values: Tensor, mask: Tensor, low: float, high: float
) -> Surrogate:
    ratio = torch.where(mask, logp - old, 0.0).exp()
    free, held = -ratio * values, -ratio.clamp(1 - low, 1 + high) * values
    loss = torch.where(mask, torch.minimum(free, held), 0.0)
    return Surrogate(loss, ratio, (held < free) & mask)


def _population_deviation(
    centred: Tensor, counts: Tensor, index: Tensor, weights: Tensor | None = None
) -> Tensor:
    squares = torch.zeros(int(index.max()) + 1, dtype=centred.dtype)
    squares.index_add_(0, index, centred.square() * (1.0 if weights is None else weights))
    return (squares[index] / counts).sqrt() + group_statistics.EPS


def _counting_padding(count: Callable[..., MiniBatchTotals]) -> Any:
    def changed(minibatches: int, batches: Sequence[Batch]) -> MiniBatchTotals:
        totals = count(minibatches, batches)
        return replace(totals, action_tokens=sum(batch.action.numel() for batch in batches))

    return changed


def _padded_left(collate: Callable[[Sequence[TokenRow], int], Batch]) -> Any:
    """Rows padded on the left, and a mask that does not leave the padding out."""

    def changed(rows: Sequence[TokenRow], pad_id: int) -> Batch:
        batch = collate(rows, pad_id)
        padding = [batch.ids.shape[1] - len(row.ids) for row in rows]

        def rolled(values: Tensor) -> Tensor:
            return torch.stack([own.roll(by) for own, by in zip(values, padding, strict=True)])

        moved = batch.each(rolled)
        return replace(moved, attention_mask=torch.ones_like(batch.attention_mask))

    return changed
