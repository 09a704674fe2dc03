"""Trajectories -> the update's pool of transitions -> what each transition is worth.

``collect`` numbers the transitions; ``prepare`` turns rewards into advantages and entropies into
world-model weights, both over the whole update, before the update is split into mini-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paw_gym.transition import Transition
from paw_train.algorithms.estimator import (
    AdvantageEstimator,
    CriticView,
    UpdateView,
    advantage_estimator,
)
from paw_train.algorithms.paw import action_entropy
from paw_train.algorithms.selection import WorldModelPlan, plan_update
from paw_train.algorithms.tree import Tree
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.rows import look_ahead, transition_keys, trimmed
from paw_train.rollouts.tokens import StepSpans, TokenRow
from paw_train.settings import AlgorithmSettings
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.settings.world_model import WorldModelSettings


@dataclass(slots=True)
class Pool:
    """The pool P of one update: N transitions of E episodes in G rollout groups, numbered in order.

    Episodes that failed by an error of their environment are not in it.
    """

    episodes: list[Trajectory]
    """[E]"""
    steps: list[StepSpans]
    """[N]"""
    episode: Tensor
    """[N] episode of each transition, 0..E-1"""
    group: Tensor
    """[E] rollout group of each episode, 0..G-1"""
    rewards: Tensor
    """[N] float64, as the environment's agent interface gave them"""
    rows: list[TokenRow]
    """all token rows, in order"""

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
            return torch.ones(len(self.steps), dtype=torch.float64)
        return Tree(self.previous, self.group[self.episode]).weights

    @property
    def returns(self) -> Tensor:
        """[E] float64, of whole episodes, shared transitions included."""
        own = self.per_episode(self.rewards)
        whole = [e.episode for e in self.episodes]
        shared = [sum(t.reward for t in e.transitions[: e.shared_steps]) for e in whole]
        return own + torch.tensor(shared, dtype=torch.float64)

    def per_episode(self, values: Tensor) -> Tensor:
        """[E] sums of the [N] values."""
        return torch.zeros(len(self.episodes), dtype=values.dtype).index_add_(
            0, self.episode, values
        )


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """How the rewards of one environment count, among several in an update."""

    max_return: float
    """R_max"""
    reward_scale: float = 1.0
    """factor of the rewards that become advantages"""
    normalize_advantages: bool = False
    """whether its advantages are divided by their own root mean square"""


@dataclass(slots=True)
class Signals:
    """Results of forward passes over the pool, each only if the settings ask for it."""

    kl: Tensor | None = None
    """[N, A] log-ratio of each sampled token to the reference policy, in nats, 0 where there is none"""
    entropy: Tensor | None = None
    """[N] full-vocabulary action entropy"""
    sampled_entropy: Tensor | None = None
    """[N] action entropy from the log-probabilities at sampling time, where those of the steps have been
    replaced by another policy's"""
    values: Tensor | None = None
    """[N, A] the critic's values before each action token, padded on the right"""


@dataclass(slots=True)
class Experience:
    """The pool, with what each of its N transitions is worth."""

    rows: list[TokenRow]
    """as the update reads them: trimmed, or with later observations"""
    advantages: Tensor
    """[N], or [N, A] by action token, padded on the right"""
    wm_weights: Tensor
    """[N] the w_i of Eq. 11 (zeros when the world model is off)"""
    lengths: Tensor
    """[N, 2] tokens of action and next observation in ``rows``"""
    metrics: dict[str, float]
    value_targets: Tensor | None = None
    """[N, A] what the critic is to predict before each action token (``level: turn``: column 0)"""
    old_values: Tensor | None = None
    """[N, A] what it predicted before the update"""
    plan: WorldModelPlan | None = None
    """what the world-model weights were made from; [G] lambdas are of ``wm_groups``"""
    entropy: Tensor | None = None
    """[N] action entropy of each transition"""
    wm_groups: Tensor | None = None
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
    owned = [(i, step) for i, t in enumerate(good) for row in t.rows for step in row.steps]
    for index, (_, step) in enumerate(owned):
        step.index = index
    rewards = [t.reward for e in good for t in e.own]
    return Pool(
        good,
        [step for _, step in owned],
        torch.tensor([i for i, _ in owned]),
        torch.tensor([numbers[t.episode.group] for t in good]),
        torch.tensor(rewards, dtype=torch.float64),
        [row for t in good for row in t.rows],
    )


def prepare(
    pool: Pool,
    algorithm: AlgorithmSettings,
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
    max_return: float | Mapping[str, RewardTerms],
    signals: Signals | None = None,
    ask: Sequence[int] = (),
) -> Experience:
    """Advantages and world-model weights of one update.

    Args:
        pool: of ``collect``.
        algorithm: how rewards become advantages.
        objective: settings of the loss.
        world_model: settings of the world-model term.
        max_return: R_max; or, of several environments, the terms of each by its name
            (``Trajectory.environment``).
        signals: what the settings need of forward passes: see ``Signals``.
        ask: ids between an observation and the next response, for world-model horizons above 1.

    Raises:
        ValueError: a signal that the settings need is missing.
    """
    signals = signals or Signals()
    estimator = advantage_estimator(algorithm.name)
    terms = _terms(pool, max_return)
    view = _view(pool, algorithm, estimator, signals, _penalties(objective, signals), terms)
    advantages, targets = estimator(view)
    advantages = _normalized(advantages, pool, terms)
    advantages = _weighted(advantages, pool, algorithm.weighting)
    entropy = _action_entropy(pool, world_model, signals)
    groups = _wm_groups(pool, estimator)
    plan, metrics = _plan(pool, world_model, terms, entropy, groups)
    if isinstance(terms, list):
        metrics |= _by_environment(pool, plan, entropy, groups)
    keep = plan.selected | torch.full_like(plan.selected, objective.log_observations)
    horizon = world_model.horizon if world_model.enabled else 1
    rows = [
        trimmed(row, [bool(keep[step.index]) for step in row.steps])
        for e in pool.episodes
        for row in look_ahead(e.rows, horizon, ask, _unread(pool, world_model))
    ]
    lengths = torch.zeros(len(pool.steps), 2, dtype=torch.long)
    for step in itertools.chain.from_iterable(row.steps for row in rows):
        lengths[step.index] = torch.tensor(step.lengths)
    return Experience(
        rows,
        advantages.float(),
        plan.weights.float(),
        lengths,
        metrics,
        None if targets is None else targets.float(),
        signals.values,
        plan,
        entropy,
        groups[pool.episode],
    )


def _unread(pool: Pool, world_model: WorldModelSettings) -> Callable[[StepSpans], bool]:
    """True if nothing is learned from what followed a step: ``filter: warnings``."""
    if world_model.filter != "warnings":
        return lambda step: False
    malformed = pool.malformed
    return lambda step: bool(malformed[step.index])


def sampled_entropy(pool: Pool) -> Tensor:
    """[N] action entropies, from the log-probabilities that the steps hold."""
    logprobs = [step.logprobs for step in pool.steps]
    width = max(len(values) for values in logprobs)
    table = torch.zeros(len(logprobs), width)
    mask = torch.zeros(len(logprobs), width, dtype=torch.bool)
    for i, values in enumerate(logprobs):
        table[i, : len(values)] = torch.tensor(values)
        mask[i, : len(values)] = True
    return action_entropy(table, mask)


def informative_groups(trajectories: Sequence[Trajectory]) -> set[int]:
    """Groups whose episodes differ in return: the ones that move a group-relative policy (DAPO)."""
    returns: dict[int, set[float]] = {}
    for t in trajectories:
        if t.episode.error is None:
            returns.setdefault(t.episode.group, set()).add(t.episode.total_reward)
    return {group for group, values in returns.items() if len(values) > 1}


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
    """[N, A] float64, what each action token's KL takes off the reward; ``None`` where it is not there."""
    if objective.kl_in != "reward" or objective.kl_coef == 0:
        return None
    return objective.kl_coef * _needed(signals.kl, "kl").double()


def _terms(pool: Pool, max_return: float | Mapping[str, RewardTerms]) -> float | list[RewardTerms]:
    """[E] the terms of each episode's environment, or the one R_max."""
    if not isinstance(max_return, Mapping):
        return max_return
    return [max_return[e.environment] for e in pool.episodes]


def _scaled(pool: Pool, rewards: Tensor, terms: float | list[RewardTerms]) -> Tensor:
    """[N] rewards at the scales of their environments."""
    if not isinstance(terms, list):
        return rewards
    scales = torch.tensor([t.reward_scale for t in terms], dtype=torch.float64)
    return rewards * scales[pool.episode]


def _normalized(advantages: Tensor, pool: Pool, terms: float | list[RewardTerms]) -> Tensor:
    """Advantages at the same root mean square in each environment that asks for it.

    Over its transitions, or over its action tokens where advantages are by token.
    """
    if not isinstance(terms, list) or not any(t.normalize_advantages for t in terms):
        return advantages
    scaled = advantages.clone()
    wanted = {
        e.environment for e, t in zip(pool.episodes, terms, strict=True) if t.normalize_advantages
    }
    tokens = torch.tensor([s.action[1] - s.action[0] for s in pool.steps])
    for name in wanted:
        own = torch.tensor([e.environment == name for e in pool.episodes])[pool.episode]
        count = own.sum() if advantages.ndim == 1 else tokens[own].sum()
        size = (advantages[own].square().sum() / count).sqrt()
        if size > 0:
            scaled[own] = advantages[own] / size
    return scaled


def _view(
    pool: Pool,
    algorithm: AlgorithmSettings,
    estimator: AdvantageEstimator,
    signals: Signals,
    penalties: Tensor | None,
    terms: float | list[RewardTerms],
) -> UpdateView:
    """The update as the estimator reads it."""
    scaled = _scaled(pool, pool.rewards, terms)
    rewards = scaled if penalties is None else scaled - penalties.sum(-1)
    critic = None
    if estimator.needs_critic:
        values = _needed(signals.values, "values").double()
        earned = rewards if algorithm.level == "turn" else scaled
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
        _scaled(pool, pool.penalties, terms) if algorithm.penalty == "step" else None,
    )


def _critic_view(
    pool: Pool, values: Tensor, level: str, rewards: Tensor, penalties: Tensor | None
) -> CriticView:
    """Rewards laid beside the critic's values: by turn, or by token with each token's own KL."""
    counts = torch.tensor([s.action[1] - s.action[0] for s in pool.steps])
    if level == "turn":
        counts = torch.ones_like(counts)
    rows = torch.arange(len(counts))
    mask = torch.arange(values.shape[1]) < counts[:, None]
    by_decision = torch.zeros_like(values)
    by_decision[rows, counts - 1] = rewards
    if level == "token" and penalties is not None:
        by_decision = by_decision - penalties
    ends = torch.cat([pool.episode[1:] != pool.episode[:-1], torch.tensor([True])])
    last = torch.zeros_like(mask)
    last[rows[ends], counts[ends] - 1] = True
    return CriticView(values, mask, by_decision, last)


def _weighted(advantages: Tensor, pool: Pool, weighting: str) -> Tensor:
    """Advantages scaled so that a token mean weighs tokens as asked, branches by their shares."""
    # the surrogate is linear in the advantage, clip included: scaling it weighs the tokens
    lengths = torch.tensor([float(s.action[1] - s.action[0]) for s in pool.steps])
    shares = pool.shares.to(lengths.dtype)
    scale = shares * (lengths.sum() / (shares * lengths).sum().clamp(min=1))
    if weighting == "episode":
        tokens = pool.per_episode(lengths)
        scale = scale * (tokens.mean() / tokens.clamp(min=1))[pool.episode]
    return advantages * (scale if advantages.ndim == 1 else scale[:, None])


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
    terms: float | list[RewardTerms],
    entropy: Tensor,
    group: Tensor,
) -> tuple[WorldModelPlan, dict[str, float]]:
    keys = transition_keys(pool.rows) if world_model.dedup != "off" else None
    plan = plan_update(
        world_model,
        entropy,
        group[pool.episode],
        _mean_returns(pool, group),
        _max_returns(terms, group),
        keys,
        torch.tensor([step.lengths[1] for step in pool.steps]),
        pool.malformed,
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


def _max_returns(terms: float | list[RewardTerms], group: Tensor) -> float | Tensor:
    """R_max: one number, or [G] that of each group's environment."""
    if not isinstance(terms, list):
        return terms
    limits = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    limits[group] = torch.tensor([t.max_return for t in terms], dtype=torch.float64)
    return limits


def _mean_returns(pool: Pool, group: Tensor) -> Tensor:
    """[G] mean return of each group's episodes, those that branched at their shares."""
    ends = torch.cat([pool.episode[1:] != pool.episode[:-1], torch.tensor([True])])
    shares = pool.shares[ends]
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    counts = torch.zeros_like(sums).index_add_(0, group, shares)
    return sums.index_add_(0, group, shares * pool.returns) / counts
