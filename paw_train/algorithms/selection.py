"""The supervision of one update: eligible transitions, the selection among them, and their weights.

The equations are in ``paw``; here are the settings around them: filters, de-duplication, other selections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paw_gym.internals.registry import Registry
from paw_train.algorithms.paw import adaptive_weight, select_top_alpha, wm_weights
from paw_train.settings.world_model import WorldModelSettings


@dataclass(frozen=True)
class Candidates:
    """The M transitions of an update that a selection chooses from."""

    entropy: Tensor
    """[M] action entropy"""
    group: Tensor
    """[M] number of the group that each belongs to"""
    lengths: Tensor
    """[M] tokens of each next observation"""


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


def rollout_weights(
    factors: Tensor, lengths: Tensor, episode: Tensor, shares: Tensor | None = None
) -> Tensor:
    """The weights `w_i` with which the update's term is a mean over episodes of means over their tokens.

    `w_i / |o_i| = f_i / (n |O_e|)`: the supervised observations of the episode have |O_e| tokens, and n
    episodes have any (ECHO, arXiv 2605.24517).

    Args:
        factors: [N] weight of each supervised transition's group, 0 for the others.
        lengths: [N] tokens of each next observation that are read.
        episode: [N] episode of each transition, 0..E-1.
        shares: as in `wm_weights`; an episode counts in n as much as its tokens do on average.
    """
    counted = lengths * (factors != 0)
    part = counted / torch.bincount(episode, counted)[episode].clamp(min=1)
    part = part if shares is None else part * shares
    return torch.where(part > 0, factors * part / part.sum(), 0.0)


@dataclass(frozen=True)
class WorldModelPlan:
    """The supervision of one update, decided once, before it is split into mini-batches."""

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
            "selected_share": self.selected.float().mean().item(),
            "entropy_threshold": kept.min().item() if len(kept) else 0.0,
            "entropy_mean": entropy.mean().item(),
            "lambda_mean": self.lambdas.mean().item(),
        }


def group_means(returns: Tensor, group: Tensor) -> Tensor:
    """[G] mean return of each group's episodes, from the [E] returns and groups of all."""
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    return sums.index_add_(0, group, returns) / torch.bincount(group)


def plan_update(
    settings: WorldModelSettings,
    entropy: Tensor,
    group: Tensor,
    mean_returns: Tensor,
    max_return: float | Tensor,
    lengths: Tensor,
    episode: Tensor,
    malformed: Tensor | None = None,
    keys: Sequence[int] = (),
) -> WorldModelPlan:
    """Selection, group weights and transition weights of one update (Eq. 4, 10, 11).

    Args:
        settings: with `enabled` false nothing is selected and every weight is 0.
        entropy: [N] action entropy of every transition of the update.
        group: [N] integers in 0..G-1.
        mean_returns: [G] mean episode return of each group.
        max_return: R_max, or [G] that of each group's environment.
        lengths: [N] tokens of each next observation that are not left out.
        episode: [N] episode of each transition, 0..E-1.
        malformed: [N] bool: the response could not be read; needed with `filter=warnings`.
        keys: [N] equal for identical transitions; needed unless `dedup` is `off`.
    """
    ones = torch.ones_like(mean_returns)
    lambdas = adaptive_weight(mean_returns, max_return) if settings.adaptive else ones
    selected = torch.zeros(len(entropy), dtype=torch.bool)
    if not settings.enabled:
        return WorldModelPlan(selected, lambdas, wm_weights(selected, group, lambdas))
    eligible, shares = torch.ones_like(selected), None
    if settings.filter == "warnings":
        assert malformed is not None
        eligible &= ~malformed
    if settings.filters_tokens:
        eligible &= lengths > 0
    if settings.dedup != "off":
        _, first, kind, counts = np.unique(
            np.asarray(keys), return_index=True, return_inverse=True, return_counts=True
        )
        if settings.dedup == "once":
            eligible &= torch.from_numpy(first[kind] == np.arange(len(kind)))
        else:
            shares = 1 / torch.from_numpy(counts[kind])
    candidates = Candidates(entropy[eligible], group[eligible], lengths[eligible])
    selected[eligible] = _chosen(candidates, settings)
    if settings.average == "rollout":
        factors = lambdas[group] * selected
        weights = rollout_weights(factors, lengths.to(lambdas), episode, shares)
        return WorldModelPlan(selected, lambdas, weights)
    return WorldModelPlan(selected, lambdas, wm_weights(selected, group, lambdas, shares))
