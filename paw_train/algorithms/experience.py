"""The pool of an update -> the worth of each transition.

``prepare`` turns rewards into advantages and entropies into world-model weights, both over the whole update,
and writes them beside the tokens that they weigh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paw_train.algorithms.estimator import (
    AdvantageEstimator,
    CriticView,
    UpdateView,
    advantage_estimator,
)
from paw_train.algorithms.paw import token_weights
from paw_train.algorithms.pool import Pool, differing
from paw_train.algorithms.selection import WorldModelPlan, group_means, plan_update
from paw_train.rollouts.rows import look_ahead, transition_keys, trimmed
from paw_train.rollouts.tokens import OBSERVATION, TokenRow
from paw_train.settings import AlgorithmSettings
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.settings.world_model import WorldModelSettings


@dataclass(slots=True)
class Signals:
    """Results of forward passes over the pool, each only if the settings ask for it."""

    kl: Tensor | None = None
    """[A] log-ratio of each sampled token to the reference policy, in nats"""
    entropy: Tensor | None = None
    """[N] full-vocabulary action entropy"""
    values: Tensor | None = None
    """[A] the critic's values before each action token; with ``level: turn`` before each action's first"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rows that an update learns from, and what each of its N transitions is worth."""

    rows: list[TokenRow]
    """with ``advantage`` and ``wm_weight``, and with a critic ``value_target``; truncated, or with
    later observations"""
    metrics: dict[str, float]
    advantages: Tensor
    """[N], or [A] by action token"""
    plan: WorldModelPlan
    """selection and weights of the world model; its [G] lambdas are those of ``wm_groups``"""
    entropy: Tensor
    """[N] action entropy of each transition"""
    wm_groups: Tensor
    """[N] the group, 0..G-1, whose lambda weighs each transition"""


def prepare(
    pool: Pool,
    algorithm: AlgorithmSettings,
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
    max_return: float | Mapping[str, float],
    signals: Signals | None = None,
    ask: Sequence[int] = (),
) -> Prepared:
    """Advantages and world-model weights of one update, and its rows with both.

    Args:
        max_return: R_max; or, with several environments, that of each by its name
            (``Trajectory.environment``).
        ask: ids between an observation and the next response, for world-model horizons above 1.

    Raises:
        ValueError: a signal that the settings need is missing.
    """
    signals = signals or Signals()
    estimator = advantage_estimator(algorithm.name)
    advantages, targets = estimator(_view(pool, algorithm, objective, estimator, signals))
    by_token = estimator.needs_critic and algorithm.level == "token"
    if algorithm.weighting != "token":
        # the surrogate is linear in the advantage, clip included: scaling it weighs the tokens
        tokens = pool.per_episode(pool.lengths.double())
        scale = (tokens.mean() / tokens.clamp(min=1))[pool.episode]
        advantages = advantages * (scale[pool.turn] if by_token else scale)
    entropy = _action_entropy(pool, world_model, signals)
    # with a critic episodes are independent: each is a group of its own
    groups = torch.arange(len(pool.episodes)) if estimator.needs_critic else pool.group
    plan, metrics = _plan(pool, world_model, max_return, entropy, groups)
    if isinstance(max_return, Mapping):
        metrics |= _by_environment(pool, plan, entropy, groups)
    if estimator.grouped:
        metrics["penalty_share"] = _penalty_share(pool, advantages)
    columns = pool.by_row(advantages if by_token else advantages[pool.turn])
    rows = [replace(row, advantage=own) for row, own in zip(pool.rows, columns, strict=True)]
    if targets is not None:
        rows = _with_targets(rows, pool, targets, by_token)
    rows = _with_weights(rows, pool, plan, world_model, ask)
    rows = [trimmed(row, objective.log_observations) for row in rows]
    return Prepared(rows, metrics, advantages.float(), plan, entropy, groups[pool.episode])


def _with_targets(
    rows: Sequence[TokenRow], pool: Pool, targets: Tensor, by_token: bool
) -> list[TokenRow]:
    """Rows with a critic's targets: of each action token, or of each transition at its first one."""
    at_tokens = targets
    if not by_token:
        at_tokens = torch.zeros(len(pool.turn), dtype=targets.dtype)
        acted = pool.lengths > 0
        at_tokens[pool.first_tokens[acted]] = targets[acted]
    columns = zip(rows, pool.by_row(at_tokens), strict=True)
    return [replace(row, value_target=target) for row, target in columns]


def _with_weights(
    rows: Sequence[TokenRow],
    pool: Pool,
    plan: WorldModelPlan,
    world_model: WorldModelSettings,
    ask: Sequence[int],
) -> list[TokenRow]:
    """Rows with the world-model weight of each token.

    With a horizon above 1, several transitions of a dialogue may supervise one token: their weights add up.
    In window mode the observations further ahead are appended to the row.
    """
    horizon = world_model.horizon if world_model.enabled else 1
    lengths = pool.observation_lengths
    if world_model.filter == "warnings":  # not from earlier transitions either
        lengths = torch.where(pool.malformed, 0, lengths)
    discount = world_model.discount
    factors = token_weights(plan.weights, lengths, pool.episode, horizon, discount)
    # dialogues hold several transitions, which may supervise the same tokens
    row_of = torch.zeros(len(pool.rewards), dtype=torch.long)
    numbers = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r.ids) for r in rows]))
    learned = pool.token_turn >= 0
    row_of[pool.token_turn[learned]] = numbers[learned]
    own = factors[:, 0].clone()
    for ahead in range(1, min(horizon, len(own))):
        own[ahead:] += factors[:-ahead, ahead] * (row_of[ahead:] == row_of[:-ahead])
    turns = pool.token_turn[pool.token_role == OBSERVATION]
    columns = pool.by_row(own[turns], OBSERVATION)
    found = [replace(row, wm_weight=column) for row, column in zip(rows, columns, strict=True)]
    for number, row in enumerate(rows if horizon > 1 else ()):
        # a row without a transition reads those of the last one, which has nothing ahead
        weights = factors[max(row.turn), 1:].tolist()
        while weights and not weights[-1]:
            weights.pop()
        following = rows[number + 1 : number + 1 + len(weights)]
        found[number] = look_ahead(found[number], following, ask, weights)
    return found


def _needed(signal: Tensor | None, name: str) -> Tensor:
    if signal is None:
        raise ValueError(f"the settings need the signal {name!r}, which was not computed.")
    return signal


# --- advantages ---------------------------------------------------------------------------------


def _view(
    pool: Pool,
    algorithm: AlgorithmSettings,
    objective: ObjectiveSettings,
    estimator: AdvantageEstimator,
    signals: Signals,
) -> UpdateView:
    """The update as the estimator reads it."""
    rewards = pool.rewards
    penalties = None  # [A] what each action token's KL takes off the reward
    if objective.kl_in == "reward" and objective.kl_coef > 0:
        penalties = objective.kl_coef * _needed(signals.kl, "kl").double()
        rewards = rewards.index_add(0, pool.turn, -penalties)
    critic = None
    if estimator.needs_critic:
        values = _needed(signals.values, "values").double()
        by_token = algorithm.level == "token"
        episode = pool.episode[pool.turn] if by_token else pool.episode
        last = torch.cat([episode[1:] != episode[:-1], torch.tensor([True])])
        if by_token:
            # a token's KL is taken off at that token
            earned = torch.zeros_like(values) if penalties is None else -penalties
            places = (pool.lengths.cumsum(0) - 1).clamp(min=0)
            own = (
                episode[places] == pool.episode
            )  # not so of an empty action that begins an episode
            earned = earned.index_add(0, places[own], pool.rewards[own])
            critic = CriticView(values, earned, last)
        else:
            critic = CriticView(values[pool.first_tokens], rewards, last)
    return UpdateView(
        rewards,
        pool.episode,
        torch.tensor([t.step for t in pool.transitions]),
        pool.group,
        algorithm,
        estimator.default_gamma if algorithm.gamma is None else algorithm.gamma,
        lambda: pool.anchors,
        critic,
        pool.penalties if algorithm.penalty == "step" else None,
        _task_deviation(pool) if algorithm.normalize == "batch" else None,
    )


def _task_deviation(pool: Pool) -> Tensor:
    """[E] standard deviation (n - 1) of returns without penalties, over each environment; 1 in place of 0."""
    earned = pool.earned
    found = torch.ones_like(earned)
    names = [e.environment for e in pool.episodes]
    for name in set(names):
        own = torch.tensor([other == name for other in names])
        if earned[own].max() > earned[own].min():
            found[own] = earned[own].std()
    return found


def _penalty_share(pool: Pool, advantages: Tensor) -> float:
    """The share of all advantages [N] that is in groups whose episodes differ in penalties alone."""
    groups = pool.group.tolist()
    earned_apart = differing(zip(groups, pool.earned.tolist(), strict=True))
    alike = torch.tensor([group not in earned_apart for group in groups])[pool.episode]
    sizes = advantages.abs() * pool.lengths
    return float(sizes[alike].sum() / sizes.sum().clamp(min=1e-12))


# --- world model ----------------------------------------------------------------------------------


def _action_entropy(pool: Pool, world_model: WorldModelSettings, signals: Signals) -> Tensor:
    """[N] the entropy that transitions are selected by; over sampled tokens `-(1 / |a|) sum q log q`."""
    if world_model.enabled and world_model.entropy == "full":
        return _needed(signals.entropy, "entropy")
    return pool.action_means(torch.special.entr(pool.logprob.exp()))


def _plan(
    pool: Pool,
    world_model: WorldModelSettings,
    max_return: float | Mapping[str, float],
    entropy: Tensor,
    group: Tensor,
) -> tuple[WorldModelPlan, dict[str, float]]:
    keys = transition_keys(pool.rows) if world_model.dedup != "off" else []
    limits: Any = max_return
    if isinstance(max_return, Mapping):  # [G] that of each group's environment
        own = torch.tensor([max_return[e.environment] for e in pool.episodes], dtype=torch.float64)
        limits = own.new_zeros(int(group.max()) + 1).index_copy(0, group, own)
    plan = plan_update(
        world_model,
        entropy,
        group[pool.episode],
        group_means(pool.returns, group),
        limits,
        pool.observation_lengths,
        pool.episode,
        pool.malformed,
        keys,
    )
    metrics = plan.metrics(entropy)
    if keys:
        metrics["unique_share"] = len(set(keys)) / len(keys)
    return plan, metrics


def _by_environment(
    pool: Pool, plan: WorldModelPlan, entropy: Tensor, group: Tensor
) -> dict[str, float]:
    """The plan's metrics for each environment: ``metric/environment``."""
    found: dict[str, float] = {}
    for name in sorted({e.environment for e in pool.episodes}):
        episodes = torch.tensor([e.environment == name for e in pool.episodes])
        own = episodes[pool.episode]
        found |= {
            f"selected_share/{name}": plan.selected[own].float().mean().item(),
            f"entropy_mean/{name}": entropy[own].mean().item(),
            f"lambda_mean/{name}": plan.lambdas[group[episodes].unique()].mean().item(),
        }
    return found
