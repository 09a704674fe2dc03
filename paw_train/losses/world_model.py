"""World-model supervision on the policy's own rollouts: PaW, arXiv 2606.02388, section 3.

Pure functions: which transitions are supervised (action entropy, Eq. 4), how strongly (adaptive
weight, Eq. 10; transition weights, Eq. 11) and with which loss (clipped MAE, Eq. 8, and its
alternatives). Equation numbers are the paper's.

Token tensors are `[B, T]`, one row per transition, position `t` holding what belongs to token `t`
itself (its log-probability given everything before it), as
`paw_train.rollouts.scoring.batch_logprobs` returns them. Values outside the mask are never read, NaN
and infinities included.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paw_gym.registry import Registry
from paw_train.losses.tensor_inputs import FloatArray, as_float, as_mask, require_finite
from paw_train.settings.world_model import WorldModelSettings

__all__ = [
    "WORLD_MODEL_LOSSES",
    "WORLD_MODEL_SELECTIONS",
    "Candidates",
    "WorldModelPlan",
    "WorldModelSettings",
    "action_entropy",
    "adaptive_weight",
    "clipped_mae",
    "copies",
    "cross_entropy",
    "mae",
    "multi_step_loss",
    "plan_update",
    "predicted_well",
    "select_top_alpha",
    "wm_weights",
    "world_model_loss",
]


def action_entropy(logprobs: FloatArray, mask: FloatArray) -> Tensor:
    """The paper's action entropy (section 3.1), over the sampled tokens only.

    `H = -(1 / |a|) * sum_i q_i log q_i` with `q_i` the probability of the i-th sampled token. Needs
    only log-probabilities that the rollout or the training pass has made already. No gradient.

    Args:
        logprobs: [B, T] log-probabilities of the tokens, in nats.
        mask: [B, T] 1 on action tokens.

    Returns:
        [B] entropies in nats, each in [0, 1/e]; 0 for an empty action.
    """
    logp, tokens = _masked(logprobs, mask)
    with torch.no_grad():
        return _mean_over(torch.special.entr(logp.exp()), tokens)


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
        rho: confidence above which a token counts as learned, in (0, 1]; 1 gives `mae`.

    Returns:
        [B] losses in [0, 1], differentiable; 0 for an empty observation.
    """
    logp, tokens = _masked(logprobs, mask)
    probabilities = logp.exp()
    kept = ~_above(probabilities.detach(), rho)
    return _mean_over((1 - probabilities) * kept, tokens)


def mae(logprobs: FloatArray, mask: FloatArray) -> Tensor:
    """Mean absolute error `sum_i (1 - p_i) / |o|`, without clipping. Shapes as in `clipped_mae`."""
    logp, tokens = _masked(logprobs, mask)
    return _mean_over(1 - logp.exp(), tokens)


def cross_entropy(logprobs: FloatArray, mask: FloatArray) -> Tensor:
    """Cross-entropy `-sum_i log p_i / |o|` in nats (Eq. 5). Shapes as in `clipped_mae`."""
    logp, tokens = _masked(logprobs, mask)
    return _mean_over(-logp, tokens)


WorldModelLoss = Callable[[Tensor, Tensor, WorldModelSettings], Tensor]
"""(log-probabilities [B, T], mask [B, T], settings) -> losses [B], differentiable"""
WORLD_MODEL_LOSSES: Registry[WorldModelLoss] = Registry(
    "world-model loss", "paw_train.world_model_losses"
)
"""the losses by name; add yours with ``WORLD_MODEL_LOSSES.register``"""
WORLD_MODEL_LOSSES.add("cmae", lambda logp, mask, s: clipped_mae(logp, mask, s.rho))
WORLD_MODEL_LOSSES.add("mae", lambda logp, mask, s: mae(logp, mask))
WORLD_MODEL_LOSSES.add("ce", lambda logp, mask, s: cross_entropy(logp, mask))


def world_model_loss(
    logprobs: FloatArray, mask: FloatArray, settings: WorldModelSettings
) -> Tensor:
    """The loss that `settings.loss` names, [B]. Shapes as in `clipped_mae`.

    Raises:
        ValueError: there is no such loss, or it returned something else than a number for each row.
    """
    logp, tokens = _masked(logprobs, mask)
    losses = WORLD_MODEL_LOSSES[settings.loss](logp, tokens, settings)
    if not isinstance(losses, Tensor) or losses.shape != logp.shape[:1]:
        raise ValueError(
            f"The world-model loss {settings.loss!r} returned {type(losses).__name__} of shape "
            f"{tuple(getattr(losses, 'shape', ()))}; expected a tensor with one loss for each of the "
            f"{len(logp)} rows."
        )
    return losses


@dataclass(frozen=True)
class Candidates:
    """The M transitions of an update that a selection chooses from."""

    entropy: Tensor
    """[M] action entropy"""
    group: Tensor
    """[M] number of the group that each belongs to"""
    lengths: Tensor | None
    """[M] tokens of each next observation; ``None`` where nobody counted them"""


Selection = Callable[[Candidates, WorldModelSettings], Tensor]
"""(candidates, settings) -> [M] booleans, True for the selected"""
WORLD_MODEL_SELECTIONS: Registry[Selection] = Registry(
    "world-model selection", "paw_train.world_model_selections"
)
"""the selections by name; add yours with ``WORLD_MODEL_SELECTIONS.register``"""
WORLD_MODEL_SELECTIONS.add("top_entropy", lambda c, s: select_top_alpha(c.entropy, s.alpha))


def _chosen(candidates: Candidates, settings: WorldModelSettings) -> Tensor:
    """[M] booleans of the selection that `settings.selection` names."""
    chosen = WORLD_MODEL_SELECTIONS[settings.selection](candidates, settings)
    wanted = candidates.entropy.shape
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != wanted:
        raise ValueError(
            f"The world-model selection {settings.selection!r} did not return a boolean tensor with one "
            f"entry for each of the {len(candidates.entropy)} candidates."
        )
    return chosen


def predicted_well(logprobs: FloatArray, mask: FloatArray, rho: float = 0.2) -> Tensor:
    """[B, T] booleans: observation tokens with `p > rho`, left out by `clipped_mae` (Eq. 7)."""
    logp, tokens = _masked(logprobs, mask)
    return _above(logp.detach().exp(), rho) & tokens


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


def multi_step_loss(logprobs: FloatArray, horizon: Tensor, settings: WorldModelSettings) -> Tensor:
    """World-model loss over `o_{t+1}` to `o_{t+k}` along the actions taken (our extension).

    `sum_j discount^(j-1) l(o_{t+j}) / sum_j discount^(j-1)`, over the observations that the episode
    still had; with k = 1 it is `world_model_loss`.

    Args:
        logprobs: [B, T] log-probabilities of the tokens, in nats.
        horizon: [B, T] j on the tokens of `o_{t+j}`, 0 elsewhere.
        settings: loss, horizon, discount.

    Returns:
        [B] losses.
    """
    first = world_model_loss(logprobs, horizon == 1, settings)
    if settings.horizon == 1:
        return first
    total, mass = first, (horizon == 1).any(-1).to(first.dtype)
    for ahead in range(2, settings.horizon + 1):
        weight = settings.discount ** (ahead - 1)
        total = total + weight * world_model_loss(logprobs, horizon == ahead, settings)
        mass = mass + weight * (horizon == ahead).any(-1)
    return total / mass.clamp(min=torch.finfo(first.dtype).tiny)


def copies(keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """How often each transition of an update occurs, and whether it is the first of its kind.

    Args:
        keys: [N] equal for identical transitions.

    Returns:
        counts [N] and booleans [N].
    """
    numbers = Counter(keys)
    seen: set[int] = set()
    first = [not (key in seen or seen.add(key)) for key in keys]  # type: ignore[func-returns-value]
    return torch.tensor([numbers[key] for key in keys]), torch.tensor(first, dtype=torch.bool)


def wm_weights(
    selected: FloatArray,
    group_ids: FloatArray,
    lambdas: FloatArray,
    shares: FloatArray | None = None,
) -> Tensor:
    """What each transition's loss is multiplied by, so that the update's sum is Eq. 11.

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
    per_group = scale / (len(scale) * torch.where(sizes > 0, sizes, 1.0))
    return torch.where(chosen, per_group[groups] * part, torch.zeros_like(part))


@dataclass(frozen=True)
class WorldModelPlan:
    """What one update supervises, decided once, before it is split into mini-batches."""

    selected: Tensor
    """[N] booleans (Eq. 4)."""
    lambdas: Tensor
    """[G] weight of each group (Eq. 10, or 1)."""
    weights: Tensor
    """[N] the `w_i` of `wm_weights`, without `coef`."""

    def metrics(self, entropy: Tensor) -> dict[str, float]:
        """For the training curves: share selected, the entropy threshold met, the mean weight."""
        kept = entropy[self.selected]
        return {
            "selected_share": self.selected.float().mean().item() if len(self.selected) else 0.0,
            "entropy_threshold": kept.min().item() if len(kept) else 0.0,
            "entropy_mean": entropy.mean().item() if len(entropy) else 0.0,
            "lambda_mean": self.lambdas.mean().item() if len(self.lambdas) else 0.0,
        }


def plan_update(
    settings: WorldModelSettings,
    entropy: FloatArray,
    group_ids: FloatArray,
    mean_returns: FloatArray,
    max_return: float | FloatArray,
    keys: Sequence[int] | None = None,
    lengths: FloatArray | None = None,
    warnings_only: FloatArray | None = None,
) -> WorldModelPlan:
    """Selection, group weights and transition weights of one update (Eq. 4, 10, 11).

    Args:
        settings: with `enabled` false nothing is selected and every weight is 0.
        entropy: [N] action entropy of every transition of the update.
        group_ids: [N] integers in 0..G-1.
        mean_returns: [G] mean episode return of each group.
        max_return: R_max, or [G] that of each group's environment.
        keys: [N] equal for identical transitions; needed unless `dedup` is `off`.
        lengths: [N] tokens of each next observation that are not left out; needed with
            `filter_echoes` and `filter_patterns`, and by selections that read it.
        warnings_only: [N] whether the next observation answers a malformed response; needed with
            `filter=warnings`.

    Raises:
        ValueError: something does not fit, there is no such selection, or `keys`, `lengths` or
            `warnings_only` are missing.
    """
    values = as_float(entropy, "entropy", ndim=1).detach()
    means = as_float(mean_returns, "mean_returns", ndim=1)
    lambdas = adaptive_weight(means, max_return) if settings.adaptive else torch.ones_like(means)
    if not settings.enabled:
        selected = torch.zeros(len(values), dtype=torch.bool, device=values.device)
        return WorldModelPlan(selected, lambdas, wm_weights(selected, group_ids, lambdas))
    eligible = torch.ones(len(values), dtype=torch.bool, device=values.device)
    shares: Tensor | None = None
    if settings.filter == "warnings":
        left_out = _one_each(warnings_only, "warnings_only", "filter=warnings", values)
        eligible &= ~as_mask(left_out, "warnings_only", like=values)
    if settings.filters_tokens:
        eligible &= _one_each(lengths, "lengths", "filter_echoes or filter_patterns", values) > 0
    if settings.dedup != "off":
        if keys is None or len(keys) != len(values):
            raise ValueError(
                f"`dedup={settings.dedup}` needs `keys`, one for each of {len(values)}."
            )
        counts, first = (t.to(values.device) for t in copies(keys))
        if settings.dedup == "once":
            eligible &= first
        else:
            shares = 1 / counts
    groups = torch.as_tensor(group_ids, device=values.device)
    counted = None if lengths is None else torch.as_tensor(lengths).to(values)[eligible]
    selected = torch.zeros_like(eligible)
    selected[eligible] = _chosen(Candidates(values[eligible], groups[eligible], counted), settings)
    return WorldModelPlan(selected, lambdas, wm_weights(selected, group_ids, lambdas, shares))


def _one_each(given: FloatArray | None, name: str, setting: str, like: Tensor) -> Tensor:
    """What a setting needs of every transition, as floats [N]."""
    if given is None or len(given) != len(like):
        raise ValueError(f"`{setting}` needs `{name}`, one for each of {len(like)} transitions.")
    return torch.as_tensor(given).to(like)


def _masked(logprobs: FloatArray, mask: FloatArray) -> tuple[Tensor, Tensor]:
    """(`logprobs` with 0 where the mask is 0, the boolean mask), both [B, T].

    Replacing before any arithmetic keeps padding's NaN and infinities out of values and gradients
    alike.
    """
    logp = as_float(logprobs, "logprobs", ndim=2)
    tokens = as_mask(mask, "mask", like=logp)
    return torch.where(tokens, logp, torch.zeros((), dtype=logp.dtype, device=logp.device)), tokens


def _mean_over(values: Tensor, tokens: Tensor) -> Tensor:
    """[B] mean of the [B, T] values where `tokens` is set; 0 for a row without any."""
    return (values * tokens).sum(-1) / tokens.sum(-1).clamp(min=1)


def _above(probabilities: Tensor, rho: float) -> Tensor:
    if not 0.0 < rho <= 1.0:
        raise ValueError(f"`rho` is a probability threshold and must be in (0, 1], got {rho}.")
    # p comes back from a log-probability: exp(log(rho)) can exceed rho by an ulp or two, and a
    # token at p = rho is to be kept (Eq. 7).
    slack = 1 + 4 * torch.finfo(probabilities.dtype).eps
    return probabilities > rho * slack
