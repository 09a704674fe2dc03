"""Faults in the code that the local engine and the OpenRLHF engine share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paw_train.algorithms import group_statistics
from paw_train.algorithms.estimator import UpdateView
from paw_train.algorithms.group_statistics import deviation
from paw_train.losses import objective
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import Surrogate
from paw_train.rollouts import scoring
from paw_train.rollouts.tokens import TokenRow


def planted(fault: str) -> Any:
    """A context in which the shared code has a fault of ``faults.FAULTS``; ``None`` if it cannot have it."""
    places: dict[str, tuple[Any, str, Any]] = {
        "clip_on_wrong_side": (objective, "clipped_surrogate", _larger_of_both),
        "k1_for_k3": (
            objective,
            "k3_divergence",
            lambda logp, ref, mask: torch.where(mask, logp - ref, 0.0),
        ),
        "return_reset_at_observation": (UpdateView, "scores", property(lambda v: v.rewards)),
        "population_deviation": (
            group_statistics,
            "deviation",
            lambda values, counts, *rest: deviation(values, counts + 1, *rest),
        ),
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


def _counting_padding(count: Callable[..., MiniBatchTotals]) -> Any:
    def changed(minibatches: int, batches: Sequence[Batch]) -> MiniBatchTotals:
        totals = count(minibatches, batches)
        return replace(totals, action_tokens=sum(batch.action.numel() for batch in batches))

    return changed


def _padded_left(collate: Callable[[Sequence[TokenRow], int], Batch]) -> Any:
    """Rows padded on the left, with a mask that does not exclude the padding."""

    def changed(rows: Sequence[TokenRow], pad_id: int) -> Batch:
        batch = collate(rows, pad_id)
        padding = [batch.ids.shape[1] - len(row.ids) for row in rows]

        def rolled(values: Tensor) -> Tensor:
            return torch.stack([own.roll(by) for own, by in zip(values, padding, strict=True)])

        moved = batch.each(rolled)
        return replace(moved, attention_mask=torch.ones_like(batch.attention_mask))

    return changed
