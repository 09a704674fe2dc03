"""PaW's world-model supervision, equation by equation (arXiv 2606.02388, section 3).

Which transitions of an update are supervised (Eq. 4), with which loss (Eq. 7-8; training takes it token by
token from `losses.world_model`), how strongly each group (Eq. 10) and transition (Eq. 11) counts.

Token tensors are `[B, T]`; position `t` is about token `t`. Nothing outside a mask is read, not even NaN.
"""

import math
import warnings

import torch
from torch import Tensor

from paw_train.losses.tensor_inputs import FloatArray, as_float, as_mask, require_finite
from paw_train.losses.world_model import clipped_mae_tokens, masked, mean_over


def action_entropy(logprobs: FloatArray, mask: FloatArray) -> Tensor:
    """The paper's action entropy (section 3.1), over the sampled tokens only.

    `H = -(1 / |a|) * sum_i q_i log q_i` with `q_i` the probability of the i-th sampled token. Needs
    only log-probabilities that the rollout or the training pass has computed already. No gradient.

    Args:
        logprobs: [B, T] log-probabilities of the tokens, in nats.
        mask: [B, T] 1 on action tokens.

    Returns:
        [B] entropies in nats, each in [0, 1/e]; 0 for an empty action.
    """
    logp, tokens = masked(logprobs, mask)
    with torch.no_grad():
        return mean_over(torch.special.entr(logp.exp()), tokens)


def select_top_alpha(entropy: FloatArray, alpha: float) -> Tensor:
    """Keep the most uncertain fraction of the whole update's pool (Eq. 4).

    Exactly `ceil(alpha * B)` are kept; among equal entropies the lower index goes first, so the
    order of the pool decides and the same pool gives the same selection.

    Args:
        entropy: [B] action entropy of every transition of the update, not of one mini-batch.
        alpha: fraction to keep, in (0, 1].

    Returns:
        [B] booleans, True for the selected.

    Raises:
        ValueError: alpha is out of range, or an entropy is not finite.
    """
    values = as_float(entropy, "entropy", ndim=1).detach()
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"`alpha` is the fraction to keep and must be in (0, 1], got {alpha}.")
    require_finite(values, "entropy")
    # 0.07 * 100 is 7.000000000000001 in floating point; that is 7, not 8.
    keep = min(len(values), math.ceil(alpha * len(values) * (1 - 1e-12)))
    order = torch.sort(values, descending=True, stable=True).indices
    selected = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    selected[order[:keep]] = True
    return selected


def clipped_mae(logprobs: FloatArray, mask: FloatArray, rho: float = 0.2) -> Tensor:
    """Clipped mean absolute error of the next observation (Eq. 7-8).

    `l = sum_i 1[p_i <= rho] (1 - p_i) / |o|`: tokens already predicted better than `rho` exert no
    pull, the others a bounded one. The indicator has no gradient; `|o|` is the full length of the
    observation.

    Args:
        logprobs: [B, T] log-probabilities of the tokens, in nats.
        mask: [B, T] 1 on next-observation tokens.
        rho: confidence above which a token counts as learned, in (0, 1]; 1 clips nothing.

    Returns:
        [B] losses in [0, 1], differentiable; 0 for an empty observation.
    """
    logp, tokens = masked(logprobs, mask)
    return mean_over(clipped_mae_tokens(logp, rho), tokens)


def adaptive_weight(mean_returns: FloatArray, max_return: float | FloatArray) -> Tensor:
    """Reward-adaptive weight `lambda_g = 1 - mean_return_g / R_max` (Eq. 10).

    Not clamped, as in the paper: groups whose mean is negative (penalties) weigh more than 1. A
    mean above `max_return` would make the weight negative, that is, unlearn the observation; it
    contradicts what `max_return` means and raises a RuntimeWarning.

    Args:
        mean_returns: [G] mean episode return of each rollout group.
        max_return: the largest return an episode can have, in reward units; above 0. One number, or [G]:
            that of each group's environment.

    Returns:
        [G] weights.

    Raises:
        ValueError: `max_return` is not a positive number, or a mean is not finite.
    """
    values = as_float(mean_returns, "mean_returns", ndim=1).detach()
    if not isinstance(max_return, int | float):
        max_return = as_float(max_return, "max_return", ndim=1).to(values)
    limits = torch.as_tensor(max_return)
    if not ((limits > 0) & limits.isfinite()).all():
        raise ValueError(
            "`max_return` (R_max) is the largest attainable episode return and must be above 0, "
            f"got {max_return}."
        )
    require_finite(values, "mean_returns")
    weights = 1 - values / max_return
    if (weights < -1e-6).any():
        worst = int(weights.argmin())
        limit = limits.expand(len(values))[worst].item()
        warnings.warn(
            f"a group's mean return {values[worst].item():g} exceeds max_return={limit:g}: its "
            "world-model weight is negative. Set max_return to the environment's largest return.",
            RuntimeWarning,
            stacklevel=2,
        )
    return weights


def wm_weights(
    selected: FloatArray,
    group_ids: FloatArray,
    lambdas: FloatArray,
    shares: FloatArray | None = None,
) -> Tensor:
    """The factor of each transition's loss that makes the update's sum Eq. 11.

    `w_i = lambda_g / (|G| |S_g|)` for a selected transition of group `g`, else 0. `|G|` counts all
    groups, those without a selected transition included.

    Args:
        selected: [B] booleans, for the whole update.
        group_ids: [B] integers in 0..G-1.
        lambdas: [G] weight of each group.
        shares: [B] how much each transition counts in its group's mean, such as 1 / copies;
            `|S_g|` is then the sum of the group's shares. None: 1 each.

    Returns:
        [B] weights, in the dtype of `lambdas`.

    Raises:
        ValueError: lengths differ or a group number is out of range.
    """
    scale = as_float(lambdas, "lambdas", ndim=1).detach()
    groups = torch.as_tensor(group_ids, device=scale.device).long()
    chosen = as_mask(selected, "selected", like=groups)
    if len(groups) and (int(groups.min()) < 0 or int(groups.max()) >= len(scale)):
        raise ValueError(
            f"`group_ids` must be in 0..{len(scale) - 1}, one lambda per group; "
            f"got {int(groups.min())}..{int(groups.max())}."
        )
    part = torch.ones(len(groups), dtype=scale.dtype, device=scale.device)
    if shares is not None:
        part = as_float(shares, "shares", ndim=1).detach().to(scale)
    sizes = torch.zeros_like(scale).index_add_(0, groups, part * chosen)
    per_group = scale / (len(scale) * sizes)
    return torch.where(chosen, per_group[groups] * part, torch.zeros_like(part))


def token_weights(
    weights: Tensor, lengths: Tensor, episode: Tensor, horizon: int, discount: float
) -> Tensor:
    """The factor of each observation token's loss (Eq. 8 and 11; more than one step ahead: our extension).

    Transition i gives each token of `o_{i+j}` the factor `w_i discount^(j-1) / mass_i / |o_{i+j}|`, where
    `mass_i` sums the discounts of the observations that its episode still has. With `horizon` 1 that is
    `w_i / |o|`.

    Args:
        weights: [N] the `w_i` of `wm_weights`, transitions of an episode in order.
        lengths: [N] tokens of each next observation that are read.
        episode: [N] number of the episode of each transition.
        horizon: observations that each transition supervises.
        discount: weight of each further observation relative to the one before it.

    Returns:
        [N, horizon] factors; 0 where there is nothing to supervise.
    """
    factors = torch.zeros(len(weights), horizon, dtype=weights.dtype)
    for ahead in range(min(horizon, len(weights))):
        there = (episode[ahead:] == episode[: len(episode) - ahead]) & (lengths[ahead:] > 0)
        factors[: len(there), ahead] = there * discount**ahead
    mass = factors.sum(1)
    for ahead in range(min(horizon, len(weights))):
        factors[: len(weights) - ahead, ahead] /= lengths[ahead:].clamp(min=1)
    return torch.where(factors > 0, factors * (weights / mass)[:, None], 0.0)
