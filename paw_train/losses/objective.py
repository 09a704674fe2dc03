"""The loss of one micro-batch: clipped surrogate, KL to the reference, and the world-model term.

An *update* is split into M *mini-batches* (one optimiser step each), and those into *micro-batches* by
memory. All normalisers are those of the whole mini-batch (`MiniBatchTotals`), or are already in the weights
of the tokens, so the gradients of its micro-batches add up to exactly the gradient of the undivided
mini-batch.

All `[B, T]` tensors are aligned with the token ids: position `t` holds what belongs to token `t`.
Everything is a pure function of its arguments; no model is called here.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.tensor_inputs import FloatArray, as_float, as_mask
from paw_train.losses.world_model import predicted_well, token_losses
from paw_train.metrics import merge_rule
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.settings.world_model import WorldModelSettings

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before `exp`, so that one token far from the old policy gives a large
finite loss with no gradient instead of an infinity."""


class Surrogate(NamedTuple):
    """Per-token results of `clipped_surrogate`, each [B, T] and 0 (ratio: 1) outside the mask."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


class LossOutput(NamedTuple):
    """One micro-batch's share of the mini-batch's loss."""

    loss: Tensor
    """scalar, `policy_loss + wm_loss`: what to call backward on"""
    policy_loss: Tensor
    """scalar: surrogate and KL; separate, so that gradient norms can be measured apart"""
    wm_loss: Tensor | None
    """scalar: `M * coef * sum_t wm_weight_t l(p_t)`; None when the world model is off"""
    metrics: dict[str, Tensor]
    """scalars without gradient, to be combined by `merge_metrics`"""


def clipped_surrogate(
    logp: FloatArray,
    old_logp: FloatArray,
    advantages: FloatArray,
    mask: FloatArray,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Surrogate:
    """PPO's clipped objective as a loss per token (Schulman et al. 2017, Eq. 7; DAPO's two clips).

    `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = exp(logp - old_logp)`.

    Args:
        logp: [B, T] log-probabilities under the policy being trained.
        old_logp: [B, T] under the policy that the update started from.
        advantages: [B], one for all action tokens of a row, or [B, T].
        mask: [B, T] 1 on action tokens.

    Returns:
        loss, ratio, and whether the clip is what decides the token's loss (its gradient is then 0).
    """
    new = as_float(logp, "logp", ndim=2)
    tokens = as_mask(mask, "mask", like=new)
    old = as_float(old_logp, "old_logp", ndim=2).detach()
    given = torch.as_tensor(advantages)
    weight = as_float(given, "advantages", ndim=2 if given.ndim == 2 else 1).detach()
    weight = torch.where(tokens, weight if weight.ndim == 2 else weight[:, None], 0.0)
    ratio = _bounded(torch.where(tokens, new - old, 0.0)).exp()
    free = -ratio * weight
    held = -ratio.clamp(1 - clip_low, 1 + clip_high) * weight
    return Surrogate(torch.maximum(free, held), ratio, held > free)


def k3_divergence(logp: FloatArray, ref_logp: FloatArray, mask: FloatArray) -> Tensor:
    """Low-variance estimate of KL(policy || reference) per sampled token (Schulman 2020, "k3").

    `exp(d) - d - 1` with `d = ref_logp - logp`: never negative, unbiased, differentiable in `logp`.

    Args:
        logp: [B, T] under the policy being trained.
        ref_logp: [B, T] under the reference.
        mask: [B, T] 1 on action tokens.

    Returns:
        [B, T] in nats, 0 outside the mask.
    """
    new = as_float(logp, "logp", ndim=2)
    tokens = as_mask(mask, "mask", like=new)
    reference = as_float(ref_logp, "ref_logp", ndim=2).detach()
    gap = _bounded(torch.where(tokens, reference - new, 0.0))
    return torch.expm1(gap) - gap


def aggregate(
    values: Tensor, batch: Batch, totals: MiniBatchTotals, settings: ObjectiveSettings
) -> Tensor:
    """A micro-batch's share of the mini-batch's mean of [B, T] values of its action tokens; a scalar."""
    if settings.aggregation == "sequence-mean":
        return (values * batch.share * batch.action).sum() / max(totals.sequences, 1)
    return (values * batch.action).sum() / max(totals.action_tokens, 1)


def combined_loss(
    logp: Tensor,
    batch: Batch,
    totals: MiniBatchTotals,
    settings: ObjectiveSettings,
    world_model: WorldModelSettings,
    entropy: Tensor | None = None,
) -> LossOutput:
    """RL loss plus world-model loss of one micro-batch (Eq. 11, for a mini-batched update).

    Args:
        logp: [B, T] log-probabilities of the rows' tokens, with gradient, as
            `paw_train.rollouts.scoring.batch_logprobs` gives them.
        totals: of the whole mini-batch.
        entropy: [B, T] full-vocabulary entropy at the action tokens, with gradient; needed when
            `entropy_coef` is above 0.

    Returns:
        The loss, its two parts and the metrics. With `world_model.enabled` false the loss is
        the plain RL loss, bit for bit.

    Raises:
        ValueError: something that the settings need is missing from the batch.
    """
    policy_loss, metrics = _policy_terms(logp, batch, totals, settings, entropy)
    if settings.log_observations:
        # in nats per token, over supervised and other observations: comparable with and without PaW
        nll = -torch.where(batch.observation, logp.detach(), 0.0).sum()
        metrics["obs_nll"] = nll / max(totals.observation_tokens, 1)
    if not world_model.enabled:
        return LossOutput(policy_loss, policy_loss, None, metrics)
    wm_loss, wm_metrics = _world_model_term(logp, batch, totals, world_model)
    return LossOutput(policy_loss + wm_loss, policy_loss, wm_loss, metrics | wm_metrics)


def merge_metrics(parts: Iterable[dict[str, Tensor]]) -> dict[str, float]:
    """The mini-batch's metrics from those of its micro-batches.

    `paw_train.metrics` states how each is merged; most are shares of a mean, which add up.
    """
    collected: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            collected.setdefault(name, []).append(value)
    merged = {
        name: getattr(torch.stack(values), merge_rule(name))() for name, values in collected.items()
    }
    return {name: value.item() for name, value in merged.items()}


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _policy_terms(
    logp: Tensor,
    batch: Batch,
    totals: MiniBatchTotals,
    settings: ObjectiveSettings,
    entropy: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    mask, advantage = batch.action, _given(batch.advantage, "advantage", "the policy loss")
    surrogate = clipped_surrogate(
        logp, batch.logprob, advantage, mask, settings.clip_low, settings.clip_high
    )
    surrogate_loss = aggregate(surrogate.loss, batch, totals, settings)
    loss = settings.policy_coef * surrogate_loss
    ratio, count = surrogate.ratio.detach(), max(totals.action_tokens, 1)
    metrics = {
        "policy_loss": surrogate_loss.detach(),
        "clip_fraction": surrogate.clipped.to(ratio.dtype).sum() / count,
        "ratio_mean": (ratio * mask).sum() / count,
        "ratio_max": ratio.max(),
        "ratio_min": ratio.min(),
    }
    if settings.entropy_coef > 0:
        given = _given(entropy, "entropy", "objective.entropy_coef above 0")
        bonus = aggregate(given, batch, totals, settings)
        metrics["entropy"] = bonus.detach()
        loss = loss - settings.entropy_coef * bonus
    if settings.kl_in == "loss" and (settings.kl_coef > 0 or batch.ref_logprob is not None):
        reference = _given(batch.ref_logprob, "ref_logprob", "objective.kl_coef above 0")
        kl = aggregate(k3_divergence(logp, reference, mask), batch, totals, settings)
        metrics["kl"] = kl.detach()
        loss = loss + settings.kl_coef * kl
    return loss, metrics


def _given(values: Tensor | None, name: str, need: str) -> Tensor:
    if values is None:
        raise ValueError(f"the batch has no `{name}`, which {need} needs.")
    return values


def _world_model_term(
    logp: Tensor, batch: Batch, totals: MiniBatchTotals, settings: WorldModelSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    given = _given(batch.wm_weight, "wm_weight", "world_model.enabled")
    # Tokens without weight are left out, not multiplied by 0: an infinite loss times 0 is NaN.
    chosen = (given != 0).nonzero(as_tuple=True)
    weights, losses = given[chosen], token_losses(logp[chosen], settings)
    # the weights sum over the update; times M, the mini-batches average to Eq. 11 whatever their sizes
    term = totals.minibatches * settings.coef * (weights * losses).sum()
    shares = (batch.share * batch.observation)[chosen]
    clipped = predicted_well(logp, batch.supervised, settings.rho).to(logp.dtype).sum()
    return term, {
        "wm_term": term.detach(),
        "wm_loss": (losses.detach() * shares).sum() / max(totals.supervised, 1),
        "clipped_share": clipped / max(totals.supervised_tokens, 1),
    }
