"""Log-probabilities of a batch's transitions, from whatever scores single tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paw_train.losses.lm_head_logprobs import TokenScores
from paw_train.rollouts.tokens import TokenBatch

Score = Callable[[Tensor, Tensor, Tensor, int], TokenScores]
"""(input ids [B, T], numbers ``b * T + t`` of P tokens, temperature [P], entropies wanted) -> scores"""


def batch_logprobs(
    score: Score, batch: TokenBatch, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the batch's action and observation tokens, with gradient.

    Actions are scored at the sampling temperature, because that is the distribution they were drawn
    from; observations at 1.

    Args:
        score: scores tokens; each is asked for once, however many transitions it belongs to.
        batch: on the model's device.
        temperature: of the rollout; 0 (the most likely token) counts as 1.
        entropy: also the Shannon entropy of the distribution that each action token was drawn from.

    Returns:
        [S, W] in nats, one line a transition, 0 where empty; and [S, W] entropies, 0 outside the
        actions, or ``None``.
    """
    number = batch.row * batch.input_ids.shape[1] + batch.column
    acts, which_act = number[batch.action_mask].unique(return_inverse=True)
    ahead = batch.horizon > 0
    rest, which_rest = number[ahead].unique(return_inverse=True)
    heat = torch.ones(len(acts) + len(rest), device=number.device, dtype=torch.float64)
    heat[: len(acts)] = temperature or 1.0
    scores = score(batch.input_ids, torch.cat([acts, rest]), heat, len(acts) if entropy else 0)
    result = scores.logprobs.new_zeros(number.shape)
    result = result.masked_scatter(batch.action_mask, scores.logprobs[which_act])
    result = result.masked_scatter(ahead, scores.logprobs[len(acts) + which_rest])
    if not entropy:
        return result, None
    spread = scores.entropy.new_zeros(number.shape)
    return result, spread.masked_scatter(batch.action_mask, scores.entropy[which_act])
