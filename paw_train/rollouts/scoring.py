"""Rows through a model, a micro-batch at a time, and the log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paw_train.losses.batch import Batch
from paw_train.losses.lm_head_logprobs import TokenScores
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow, micro_batches

Score = Callable[[Tensor, Tensor, Tensor, int], TokenScores]
"""(input ids [B, T], numbers ``b * T + t`` of P tokens, temperature [P], entropies wanted) -> scores"""


def collate(rows: Sequence[TokenRow], pad_id: int) -> Batch:
    """A batch of rows that all have the same lists, padded on the right with ``pad_id``.

    Raises:
        ValueError: a row's first token has a role, but nothing predicts it.
    """
    lengths = torch.tensor([len(row.ids) for row in rows])
    shape = len(rows), int(lengths.max())

    def padded(name: str, fill: int = 0, dtype: type = np.float32) -> Tensor | None:
        if getattr(rows[0], name) is None:
            return None
        # numpy reads lists several times as fast as torch
        result: np.ndarray = np.full(shape, fill, dtype)
        for b, row in enumerate(rows):
            result[b, : len(row.ids)] = getattr(row, name)
        return torch.from_numpy(result)

    role, turn = padded("role", 0, np.int64), padded("turn", -1, np.int64)
    assert role is not None and turn is not None
    if role[:, 0].any():
        raise ValueError("the first token of a row has a role, but nothing predicts it.")
    part = (torch.arange(len(rows))[:, None] * (turn.max() + 2) + turn + 1) * 3 + role
    _, where, counts = part.unique(return_inverse=True, return_counts=True)
    return Batch(
        padded("ids", pad_id, np.int64),  # type: ignore[arg-type]
        (torch.arange(shape[1]) < lengths[:, None]).long(),
        role == ACTION,
        role == OBSERVATION,
        turn,
        1 / counts[where],
        padded("logprob"),  # type: ignore[arg-type]
        padded("advantage"),
        padded("wm_weight"),
        padded("placebo_ids", pad_id, np.int64),
        padded("value_target"),
        padded("ref_logprob"),
    )


def collated(rows: Sequence[TokenRow], pad_id: int, token_budget: int) -> list[Batch]:
    """Rows, longest first, as batches of at most ``token_budget`` padded tokens, or one row."""
    return [collate([rows[i] for i in part], pad_id) for part in micro_batches(rows, token_budget)]


@torch.no_grad()
def read_rows(
    reader: Any, rows: Sequence[TokenRow], token_budget: int, read: Callable[[Batch], Tensor]
) -> list[Tensor]:
    """Values of the tokens of each row, from forward passes over all rows, micro-batch by micro-batch.

    Args:
        reader: a policy or a critic; gives ``device`` and ``pad_id``.
        token_budget: padded tokens of one forward pass; affects memory, not results.
        read: (batch on the reader's device) -> [B, T'] values, T' <= T.

    Returns:
        For each row [T'], float32, on the CPU.
    """
    found = [torch.empty(0)] * len(rows)
    for part in micro_batches(rows, token_budget):
        batch = collate([rows[i] for i in part], reader.pad_id).to(reader.device)
        for i, values in zip(part, read(batch).float().cpu(), strict=True):
            found[i] = values[: len(rows[i].ids)]
    return found


def row_logprobs(
    policy: Any, rows: Sequence[TokenRow], token_budget: int, temperature: float = 1.0
) -> list[Tensor]:
    """Log-probabilities of the tokens of each action and of each next observation, by a ``LocalPolicy``.

    Actions are scored at the temperature, observations at 1.

    Returns:
        For each row [T] in nats, 0 on context, float32, on the CPU.
    """
    policy.model.eval()
    return read_rows(policy, rows, token_budget, lambda batch: policy.logprobs(batch, temperature))


def batch_logprobs(
    score: Score, batch: Batch, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the batch's tokens in use, with gradient.

    Actions are scored at the sampling temperature, because that is the distribution they were sampled
    from; observations at 1.

    Args:
        temperature: of the rollout; 0 (the most likely token) counts as 1.
        entropy: also the Shannon entropy of the distribution that each action token was sampled from.

    Returns:
        [B, T] in nats, 0 elsewhere; and [B, T] entropies, 0 outside the actions, or ``None``.
    """
    seen = batch.scored & ~batch.action
    acts, others = (mask.flatten().nonzero().squeeze(1) for mask in (batch.action, seen))
    temperatures = torch.ones(len(acts) + len(others), device=acts.device, dtype=torch.float64)
    temperatures[: len(acts)] = temperature or 1.0
    scores = score(batch.ids, torch.cat([acts, others]), temperatures, len(acts) if entropy else 0)
    result = scores.logprobs.new_zeros(batch.ids.shape)
    result = result.masked_scatter(batch.action, scores.logprobs[: len(acts)])
    result = result.masked_scatter(seen, scores.logprobs[len(acts) :])
    if not entropy:
        return result, None
    return result, torch.zeros_like(result).masked_scatter(batch.action, scores.entropy)
