"""The supervision of one update: eligible transitions, the selection among them, and their weights.

The equations are in ``paw``; here are the settings around them: filters, de-duplication, other selections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paw_gym.internals.registry import Registry
from paw_train.algorithms.paw import adaptive_weight, select_top_alpha, wm_weights
from paw_train.losses.tensor_inputs import FloatArray, as_float, as_mask
from paw_train.settings.world_model import WorldModelSettings


@dataclass(frozen=True)
class Candidates:
    """The M transitions of an update that a selection chooses from."""

    entropy: Tensor
    """[M] action entropy"""
    group: Tensor
    """[M] number of the group that each belongs to"""
    lengths: Tensor | None
    """[M] tokens of each next observation; ``None`` if they were not counted"""


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
            "selected_share": self.selected.float().mean().item() if len(self.selected) else 0.0,
            "entropy_threshold": kept.min().item() if len(kept) else 0.0,
            "entropy_mean": entropy.mean().item() if len(entropy) else 0.0,
            "lambda_mean": self.lambdas.mean().item() if len(self.lambdas) else 0.0,
        }


def group_means(returns: Tensor, group: Tensor) -> Tensor:
    """[G] mean return of each group's episodes, from the [E] returns and groups of all."""
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    return sums.index_add_(0, group, returns) / torch.bincount(group)


def plan_update(
    settings: WorldModelSettings,
    entropy: FloatArray,
    group_ids: FloatArray,
    mean_returns: FloatArray,
    max_return: float | FloatArray,
    keys: Sequence[int] | None = None,
    lengths: FloatArray | None = None,
    warnings_only: FloatArray | None = None,
    episodes: FloatArray | None = None,
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
            `filter_echoes`, `filter_patterns` and `average=rollout`, and by selections that read it.
        warnings_only: [N] whether the next observation answers a malformed response; needed with
            `filter=warnings`.
        episodes: [N] episode of each transition, 0..E-1; needed with `average=rollout`.

    Raises:
        ValueError: something does not fit, there is no such selection, or `keys`, `lengths`,
            `warnings_only` or `episodes` are missing.
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
    if settings.average == "rollout":
        sizes = _one_each(lengths, "lengths", "average=rollout", values).to(lambdas)
        owners = _one_each(episodes, "episodes", "average=rollout", values).long()
        factors = lambdas[groups.long()] * selected
        return WorldModelPlan(selected, lambdas, rollout_weights(factors, sizes, owners, shares))
    return WorldModelPlan(selected, lambdas, wm_weights(selected, group_ids, lambdas, shares))


def _one_each(given: FloatArray | None, name: str, setting: str, like: Tensor) -> Tensor:
    """Values that a setting needs for every transition, as floats [N]."""
    if given is None or len(given) != len(like):
        raise ValueError(f"`{setting}` needs `{name}`, one for each of {len(like)} transitions.")
    return torch.as_tensor(given).to(like)
