"""Trajectories -> the update's pool of transitions -> what each transition is worth.

``collect`` numbers the transitions; ``prepare`` turns rewards into advantages and entropies into
world-model weights, both over the whole update, and writes them beside the tokens that they weigh. A vector
[A] has an entry for each action token of the pool, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paw_gym.transition import Transition
from paw_train.algorithms.estimator import (
    AdvantageEstimator,
    CriticView,
    UpdateView,
    advantage_estimator,
)
from paw_train.algorithms.paw import token_weights
from paw_train.algorithms.selection import WorldModelPlan, plan_update
from paw_train.algorithms.tree import Tree
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.rows import look_ahead, transition_keys, trimmed
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import AlgorithmSettings
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.settings.world_model import WorldModelSettings


@dataclass(slots=True)
class Pool:
    """The pool P of one update: N transitions of E episodes in G rollout groups, numbered in order.

    Episodes that failed by an error of their environment are not in it.
    """

    episodes: list[Trajectory]
    """[E] as they were rolled out"""
    episode: Tensor
    """[N] episode of each transition, 0..E-1"""
    group: Tensor
    """[E] rollout group of each episode, 0..G-1"""
    rewards: Tensor
    """[N] float64, as the environment's agent interface gave them"""
    rows: list[TokenRow]
    """their token rows, in order; ``turn`` is the number of the transition"""
    token_role: Tensor
    """[M] role of each of the rows' tokens"""
    token_turn: Tensor
    """[M] its transition, -1 for none"""

    @property
    def turn(self) -> Tensor:
        """[A] transition of each action token."""
        return self.token_turn[self.token_role == ACTION]

    def at_actions(self, values: Sequence[Sequence[float] | Tensor]) -> Tensor:
        """[A] of values of the rows' tokens: of each row [T], or up to its last action."""
        whole = np.zeros(len(self.token_role), np.float32)
        start = 0
        for row, own in zip(self.rows, values, strict=True):
            whole[start : start + len(own)] = own
            start += len(row.ids)
        return torch.from_numpy(whole)[self.token_role == ACTION]

    def by_row(self, values: Tensor, role: int = ACTION) -> Iterator[list[float]]:
        """Of each row [T], values of the tokens with a role, in order; 0 elsewhere."""
        whole = torch.zeros(len(self.token_role), dtype=values.dtype)
        whole[self.token_role == role] = values
        yield from map(Tensor.tolist, whole.split([len(row.ids) for row in self.rows]))

    @property
    def logprob(self) -> Tensor:
        """[A] log-probabilities that the rows hold."""
        return self.at_actions([row.logprob for row in self.rows])

    @property
    def lengths(self) -> Tensor:
        """[N] tokens of each action."""
        return torch.bincount(self.turn, minlength=len(self.rewards))

    @property
    def observation_lengths(self) -> Tensor:
        """[N] tokens of each next observation that a loss may read."""
        turns = self.token_turn[self.token_role == OBSERVATION]
        return torch.bincount(turns, minlength=len(self.rewards))

    def action_means(self, values: Tensor) -> Tensor:
        """[N] means of [A] values over each action; 0 for an empty one."""
        sums = torch.zeros(len(self.rewards), dtype=values.dtype)
        return sums.index_add_(0, self.turn, values) / self.lengths.clamp(min=1)

    @property
    def starts(self) -> Tensor:
        """[E] number of the first transition of each episode."""
        return torch.searchsorted(self.episode, torch.arange(len(self.episodes)))

    @property
    def anchors(self) -> list[str]:
        """[N] the raw observation that each action answered: GiGPO's anchor states.

        Raises:
            ValueError: a transition does not hold its observation.
        """
        return [_anchor(t) for t in self.transitions]

    @property
    def penalties(self) -> Tensor:
        """[N] float64, the part of each reward that is the penalty of an invalid response."""
        found = [t.info.get("penalty", 0.0) for t in self.transitions]
        return torch.tensor(found, dtype=torch.float64)

    @property
    def malformed(self) -> Tensor:
        """[N] bool: the response could not be read, so what follows is a complaint about its form."""
        found = [bool(t.info.get("malformed")) for t in self.transitions]
        return torch.tensor(found, dtype=torch.bool)

    @property
    def transitions(self) -> list[Transition]:
        """[N] the records; one that episodes share counts once, for the episode that sampled it."""
        return [t for e in self.episodes for t in e.own]

    @property
    def previous(self) -> Tensor:
        """[N] number of the transition before each one, -1 at the beginning of an episode."""
        numbers: dict[tuple[str, int], int] = {}
        previous = []
        for trajectory in self.episodes:
            path, shared = trajectory.episode.transitions, trajectory.episode.shared_steps
            for step, t in enumerate(path[shared:], start=shared):
                before = path[step - 1]
                previous.append(numbers[before.episode_id, before.step] if step else -1)
                numbers[t.episode_id, t.step] = len(previous) - 1
        return torch.tensor(previous)

    @property
    def shares(self) -> Tensor:
        """[N] what a transition counts for: 1, less below a branching state (``Tree.weights``)."""
        if all(e.episode.parent is None for e in self.episodes):
            return torch.ones(len(self.rewards), dtype=torch.float64)
        return Tree(self.previous, self.group[self.episode]).weights

    @property
    def returns(self) -> Tensor:
        """[E] float64, of whole episodes, shared transitions included."""
        own = self.per_episode(self.rewards)
        whole = [e.episode for e in self.episodes]
        shared = [sum(t.reward for t in e.transitions[: e.shared_steps]) for e in whole]
        return own + torch.tensor(shared, dtype=torch.float64)

    @property
    def earned(self) -> Tensor:
        """[E] float64, returns without the penalties of invalid responses."""
        paths = [e.episode.transitions for e in self.episodes]
        sums = [sum(t.reward - t.info.get("penalty", 0.0) for t in path) for path in paths]
        # a penalty that was added and taken off again leaves rounding: equal returns stay equal
        return torch.tensor(sums, dtype=torch.float64).round(decimals=9)

    def per_episode(self, values: Tensor) -> Tensor:
        """[E] sums of the [N] values."""
        return torch.zeros(len(self.episodes), dtype=values.dtype).index_add_(
            0, self.episode, values
        )


@dataclass(slots=True)
class Signals:
    """Results of forward passes over the pool, each only if the settings ask for it."""

    kl: Tensor | None = None
    """[A] log-ratio of each sampled token to the reference policy, in nats"""
    entropy: Tensor | None = None
    """[N] full-vocabulary action entropy"""
    sampled_entropy: Tensor | None = None
    """[N] action entropy from the log-probabilities at sampling time, if those of the rows have been
    replaced by another policy's"""
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
    """selection and weights of the world model; [G] lambdas are of ``wm_groups``"""
    entropy: Tensor
    """[N] action entropy of each transition"""
    wm_groups: Tensor
    """[N] the group, 0..G-1, whose lambda weighs each transition"""


def collect(trajectories: Sequence[Trajectory]) -> Pool:
    """The pool of an update's trajectories, all groups; failed episodes are left out.

    Raises:
        ValueError: no episode is left; the first traceback is in the message.
    """
    good = [t for t in trajectories if t.episode.error is None and t.own]
    if not good:
        raise ValueError(
            "Every episode of the rollout failed in its environment; the first traceback:\n"
            + str(trajectories[0].episode.error if trajectories else "no episodes")
        )
    numbers = {g: i for i, g in enumerate(sorted({t.episode.group for t in good}))}
    rewards = [t.reward for e in good for t in e.own]
    rows: list[TokenRow] = []
    first = 0
    for e in good:
        rows += [row.numbered(first) for row in e.rows]
        first += len(e.own)
    return Pool(
        good,
        torch.tensor([i for i, e in enumerate(good) for _ in e.own]),
        torch.tensor([numbers[t.episode.group] for t in good]),
        torch.tensor(rewards, dtype=torch.float64),
        rows,
        torch.from_numpy(np.array([role for row in rows for role in row.role])),
        torch.from_numpy(np.array([turn for row in rows for turn in row.turn])),
    )


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
        pool: of ``collect``.
        algorithm: how rewards become advantages.
        objective: settings of the loss.
        world_model: settings of the world-model term.
        max_return: R_max; or, of several environments, that of each by its name
            (``Trajectory.environment``).
        signals: what the settings need of forward passes: see ``Signals``.
        ask: ids between an observation and the next response, for world-model horizons above 1.

    Raises:
        ValueError: a signal that the settings need is missing.
    """
    signals = signals or Signals()
    estimator = advantage_estimator(algorithm.name)
    view = _view(pool, algorithm, estimator, signals, _penalties(objective, signals))
    advantages, targets = estimator(view)
    # the transition that each advantage belongs to
    owner = torch.arange(len(pool.rewards))
    by_token = estimator.needs_critic and algorithm.level == "token"
    if by_token:
        owner = pool.turn
    advantages = advantages * _scale(pool, algorithm.weighting)[owner]
    entropy = _action_entropy(pool, world_model, signals)
    groups = _wm_groups(pool, estimator)
    plan, metrics = _plan(pool, world_model, max_return, entropy, groups)
    if isinstance(max_return, Mapping):
        metrics |= _by_environment(pool, plan, entropy, groups)
    if estimator.grouped:
        metrics["penalty_share"] = _penalty_share(pool, advantages)
    rows = _with_advantages(pool, advantages if by_token else advantages[pool.turn])
    if targets is not None:
        rows = _with_targets(rows, pool, targets)
    rows = _with_weights(rows, pool, plan, world_model, ask)
    rows = [trimmed(row, objective.log_observations) for row in rows]
    return Prepared(rows, metrics, advantages.float(), plan, entropy, groups[pool.episode])


def _with_advantages(pool: Pool, advantages: Tensor) -> list[TokenRow]:
    """The pool's rows with advantages [A], importance weights among them.

    The clipped surrogate is linear in the advantage, clip included, if the factor is above 0.
    """
    rows = []
    for row, own in zip(pool.rows, pool.by_row(advantages), strict=True):
        if row.importance is not None:
            own = [a * factor for a, factor in zip(own, row.importance, strict=True)]
        rows.append(replace(row, advantage=own, importance=None))
    return rows


def _with_targets(rows: Sequence[TokenRow], pool: Pool, targets: Tensor) -> list[TokenRow]:
    """Rows with a critic's targets: of each action token, or of each transition at its first."""
    at_tokens = targets
    if len(targets) < len(pool.turn):
        at_tokens = torch.zeros(len(pool.turn), dtype=targets.dtype)
        at_tokens[_first_tokens(pool)] = targets
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
        # a row without a transition reads the last one's, which has nothing ahead
        weights = factors[max(row.turn), 1:].tolist()
        while weights and not weights[-1]:
            weights.pop()
        following = rows[number + 1 : number + 1 + len(weights)]
        found[number] = look_ahead(found[number], following, ask, weights)
    return found


def sampled_entropy(pool: Pool) -> Tensor:
    """[N] action entropies, from the log-probabilities that the rows hold: `-(1 / |a|) sum q log q`."""
    return pool.action_means(torch.special.entr(pool.logprob.exp()))


def informative_groups(trajectories: Sequence[Trajectory]) -> set[int]:
    """Groups whose episodes differ in return: the ones that move a group-relative policy (DAPO)."""
    good = [t.episode for t in trajectories if t.episode.error is None]
    return _differing((e.group, e.total_reward) for e in good)


def _differing(values: Iterable[tuple[int, float]]) -> set[int]:
    """The groups in which values differ, of pairs (group, value)."""
    found: dict[int, set[float]] = {}
    for group, value in values:
        found.setdefault(group, set()).add(value)
    return {group for group, own in found.items() if len(own) > 1}


def _needed(signal: Tensor | None, name: str) -> Tensor:
    if signal is None:
        raise ValueError(f"the settings need the signal {name!r}, which was not computed.")
    return signal


# --- advantages ---------------------------------------------------------------------------------


def _anchor(t: Transition) -> str:
    if t.observation is None:
        raise ValueError(
            f"GiGPO groups steps by their observation, and step {t.step} of episode {t.episode_id!r} "
            "was recorded without one (Transition.observation is None). Run the episodes through "
            "AgentInterface, which records it, or train with another algorithm."
        )
    return t.observation


def _penalties(objective: ObjectiveSettings, signals: Signals) -> Tensor | None:
    """[A] float64, what each action token's KL takes off the reward; ``None`` where it is not there."""
    if objective.kl_in != "reward" or objective.kl_coef == 0:
        return None
    return objective.kl_coef * _needed(signals.kl, "kl").double()


def _view(
    pool: Pool,
    algorithm: AlgorithmSettings,
    estimator: AdvantageEstimator,
    signals: Signals,
    penalties: Tensor | None,
) -> UpdateView:
    """The update as the estimator reads it."""
    rewards = pool.rewards
    if penalties is not None:
        rewards = rewards.index_add(0, pool.turn, -penalties)
    critic = None
    if estimator.needs_critic:
        values = _needed(signals.values, "values").double()
        earned = rewards if algorithm.level == "turn" else pool.rewards
        critic = _critic_view(pool, values, algorithm.level, earned, penalties)
    return UpdateView(
        rewards,
        pool.episode,
        torch.tensor([t.step for t in pool.transitions]),
        pool.group,
        algorithm,
        estimator.default_gamma if algorithm.gamma is None else algorithm.gamma,
        lambda: pool.anchors,
        critic,
        pool.previous if estimator.branches else None,
        pool.penalties if algorithm.penalty == "step" else None,
        _task_deviation(pool) if algorithm.normalize == "batch" else None,
    )


def _task_deviation(pool: Pool) -> Tensor:
    """[E] standard deviation (n - 1) of returns without penalties, over each environment; 1 for 0."""
    earned = pool.earned
    found = torch.ones_like(earned)
    names = [e.environment for e in pool.episodes]
    for name in set(names):
        own = torch.tensor([other == name for other in names])
        if earned[own].max() > earned[own].min():
            found[own] = earned[own].std()
    return found


def _critic_view(
    pool: Pool, values: Tensor, level: str, rewards: Tensor, penalties: Tensor | None
) -> CriticView:
    """Rewards laid beside the critic's values: by turn, or by token with each token's own KL."""
    ends = torch.cat([pool.episode[1:] != pool.episode[:-1], torch.tensor([True])])
    if level == "turn":
        return CriticView(values[_first_tokens(pool)], rewards, ends)
    last_tokens = pool.lengths.cumsum(0) - 1
    by_decision, last = torch.zeros_like(values), torch.zeros(len(values), dtype=torch.bool)
    by_decision[last_tokens] = rewards
    last[last_tokens[ends]] = True
    return CriticView(values, by_decision if penalties is None else by_decision - penalties, last)


def _first_tokens(pool: Pool) -> Tensor:
    """[N] number of the first token of each action among the action tokens."""
    return pool.lengths.cumsum(0) - pool.lengths


def _scale(pool: Pool, weighting: str) -> Tensor:
    """[N] factors with which a token mean weighs tokens as asked, branches by their shares."""
    # the surrogate is linear in the advantage, clip included: scaling it weighs the tokens
    lengths = pool.lengths.double()
    shares = pool.shares
    scale = shares * (lengths.sum() / (shares * lengths).sum().clamp(min=1))
    if weighting == "episode":
        tokens = pool.per_episode(lengths)
        scale = scale * (tokens.mean() / tokens.clamp(min=1))[pool.episode]
    return scale


def _penalty_share(pool: Pool, advantages: Tensor) -> float:
    """The share of all advantages [N] that is in groups whose episodes differ in penalties alone."""
    groups = pool.group.tolist()
    differing = _differing(zip(groups, pool.earned.tolist(), strict=True))
    alike = torch.tensor([group not in differing for group in groups])[pool.episode]
    sizes = advantages.abs() * pool.lengths
    return float(sizes[alike].sum() / sizes.sum().clamp(min=1e-12))


# --- world model ----------------------------------------------------------------------------------


def _action_entropy(pool: Pool, world_model: WorldModelSettings, signals: Signals) -> Tensor:
    """[N] the entropy that transitions are selected by."""
    if world_model.enabled and world_model.entropy == "full":
        return _needed(signals.entropy, "entropy")
    if signals.sampled_entropy is not None:
        return signals.sampled_entropy
    return sampled_entropy(pool)


def _wm_groups(pool: Pool, estimator: AdvantageEstimator) -> Tensor:
    """[E] the group whose mean return decides each episode's lambda."""
    # with a critic episodes are independent: each is a group of its own
    return torch.arange(len(pool.episodes)) if estimator.needs_critic else pool.group


def _plan(
    pool: Pool,
    world_model: WorldModelSettings,
    max_return: float | Mapping[str, float],
    entropy: Tensor,
    group: Tensor,
) -> tuple[WorldModelPlan, dict[str, float]]:
    keys = transition_keys(pool.rows) if world_model.dedup != "off" else None
    plan = plan_update(
        world_model,
        entropy,
        group[pool.episode],
        _mean_returns(pool, group),
        _max_returns(pool, max_return, group),
        keys,
        pool.observation_lengths,
        pool.malformed,
        pool.episode,
    )
    metrics = plan.metrics(entropy)
    if keys is not None:
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


def _max_returns(
    pool: Pool, max_return: float | Mapping[str, float], group: Tensor
) -> float | Tensor:
    """R_max: one number, or [G] that of each group's environment."""
    if not isinstance(max_return, Mapping):
        return max_return
    limits = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    own = [max_return[e.environment] for e in pool.episodes]
    limits[group] = torch.tensor(own, dtype=torch.float64)
    return limits


def _mean_returns(pool: Pool, group: Tensor) -> Tensor:
    """[G] mean return of each group's episodes, those that branched at their shares."""
    ends = torch.cat([pool.episode[1:] != pool.episode[:-1], torch.tensor([True])])
    shares = pool.shares[ends]
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    counts = torch.zeros_like(sums).index_add_(0, group, shares)
    return sums.index_add_(0, group, shares * pool.returns) / counts
