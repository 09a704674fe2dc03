"""Rows through a model, a micro-batch at a time, and the log-probabilities of their transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from paw_train.losses.lm_head_logprobs import TokenScores
from paw_train.rollouts.tokens import TokenBatch, TokenRow, collate, micro_batches

Score = Callable[[Tensor, Tensor, Tensor, int], TokenScores]
"""(input ids [B, T], numbers ``b * T + t`` of P tokens, temperature [P], entropies wanted) -> scores"""


class Reader(Protocol):
    """A reader of batches of rows: a policy, or a critic."""

    @property
    def device(self) -> torch.device:
        """The device of its weights."""

    @property
    def pad_id(self) -> int:
        """Id that fills a batch up."""


class Scorer(Reader, Protocol):
    """A policy that gives log-probabilities."""

    model: Any

    def logprobs(self, batch: TokenBatch, temperature: float = 1.0) -> Tensor:
        """[S, W] as ``batch_logprobs``."""


def batches(reader: Reader, rows: Sequence[TokenRow], token_budget: int) -> Iterator[TokenBatch]:
    """The rows, longest first, as batches on the reader's device.

    Args:
        reader: whatever is to read them.
        rows: of any lengths.
        token_budget: padded tokens of one batch (one row at least): memory, not results.
    """
    for part in micro_batches(rows, token_budget):
        yield collate(part, reader.pad_id).to(reader.device)


@torch.no_grad()
def transition_logprobs(
    policy: Scorer, rows: Sequence[TokenRow], token_budget: int, temperature: float = 1.0
) -> dict[int, tuple[Tensor, Tensor]]:
    """Log-probabilities of the tokens of each action and of each next observation.

    Args:
        policy: scores; dropout is off.
        rows: whose transitions have different ``index``.
        token_budget: padded tokens of one forward pass.
        temperature: at which actions are scored; observations are scored at 1.

    Returns:
        By ``index``: [A] and [O] in nats, float32, on the CPU.
    """
    policy.model.eval()
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for batch in batches(policy, rows, token_budget):
        values = policy.logprobs(batch, temperature).float().cpu()
        actions, observations = batch.action_mask.cpu(), batch.observation_mask.cpu()
        for s, index in enumerate(batch.index.tolist()):
            found[index] = values[s][actions[s]], values[s][observations[s]]
    return found


def batch_logprobs(
    score: Score, batch: TokenBatch, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the batch's action and observation tokens, with gradient.

    Actions are scored at the sampling temperature, because that is the distribution they were sampled
    from; observations at 1.

    Args:
        score: scores tokens; each is asked for once, however many transitions it belongs to.
        batch: on the model's device.
        temperature: of the rollout; 0 (the most likely token) counts as 1.
        entropy: also the Shannon entropy of the distribution that each action token was sampled from.

    Returns:
        [S, W] in nats, one line a transition, 0 where empty; and [S, W] entropies, 0 outside the
        actions, or ``None``.
    """
    number = batch.row * batch.input_ids.shape[1] + batch.column
    acts, which_act = number[batch.action_mask].unique(return_inverse=True)
    ahead = batch.horizon > 0
    observed, which_observed = number[ahead].unique(return_inverse=True)
    temperatures = torch.ones(len(acts) + len(observed), device=number.device, dtype=torch.float64)
    temperatures[: len(acts)] = temperature or 1.0
    scores = score(
        batch.input_ids, torch.cat([acts, observed]), temperatures, len(acts) if entropy else 0
    )
    result = scores.logprobs.new_zeros(number.shape)
    result = result.masked_scatter(batch.action_mask, scores.logprobs[which_act])
    result = result.masked_scatter(ahead, scores.logprobs[len(acts) + which_observed])
    if not entropy:
        return result, None
    entropies = scores.entropy.new_zeros(number.shape)
    return result, entropies.masked_scatter(batch.action_mask, scores.entropy[which_act])
