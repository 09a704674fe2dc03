"""How well advantage estimators recover the true advantage of a step: the arithmetic of ``credit.py``.

The truth of a step is `A = Q - V`: V from continuations of the state it was taken in, Q from
continuations of the state it led to. An estimator is evaluated on *replicates* of the same step: in each
one the rest of the episode is another continuation, the group's other episodes are other ones, and so are
the branches. So the error of an estimator at a step splits into bias and variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paw_train.algorithms.advantages import gae, gigpo, grpo, reinforce_pp, rloo
from paw_train.algorithms.trees import tree_grpo, vineppo


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps of an episode."""

    rewards: list[float]
    states: list[str]
    """fingerprint of the observation before each"""
    values: list[float]
    """the critic's, before each"""
    tokens: int
    """sampled"""


@dataclass(frozen=True, slots=True)
class Target:
    """A step whose true advantage was measured."""

    episode: int
    """which of the task's episodes took it"""
    step: int
    from_state: list[float]
    """[K] return of each continuation of the state before it"""
    from_next: list[float]
    """[K] reward of the step and return of each continuation of the state after it"""
    futures: list[Steps]
    """of some continuations of the state after it, in full"""
    branch_tokens: float
    """mean sampled tokens of a continuation of the state before it"""

    @property
    def advantage(self) -> float:
        """Q - V."""
        return float(np.mean(self.from_next) - np.mean(self.from_state))

    @property
    def error(self) -> float:
        """Standard error of ``advantage``."""
        parts = (np.asarray(self.from_next), np.asarray(self.from_state))
        return math.sqrt(sum(p.var(ddof=1) / len(p) for p in parts if len(p) > 1))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was sampled of one task."""

    episodes: list[Steps]
    targets: list[Target]


@dataclass(frozen=True, slots=True)
class Replicate:
    """One update that holds the step: its own episode, the group's others, branches of its state."""

    own: Steps
    step: int
    others: list[Steps]
    branches: list[float]
    """return of each, from the step's state on"""


Estimator = Callable[[Replicate], float]


def _rows(replicate: Replicate) -> tuple[list[Steps], list[float], list[int], list[int], list[str]]:
    """The episodes, and of all their steps: rewards, episode, number in it, state."""
    episodes = [replicate.own, *replicate.others]
    rewards = [r for e in episodes for r in e.rewards]
    owners = [i for i, e in enumerate(episodes) for _ in e.rewards]
    numbers = [n for e in episodes for n in range(len(e.rewards))]
    return episodes, rewards, owners, numbers, [s for e in episodes for s in e.states]


def _returns(replicate: Replicate) -> list[float]:
    return [sum(e.rewards) for e in (replicate.own, *replicate.others)]


def _grpo(replicate: Replicate) -> float:
    returns = _returns(replicate)
    return float(grpo(returns, [0] * len(returns), normalize=False)[0])


def _rloo(replicate: Replicate) -> float:
    returns = _returns(replicate)
    return float(rloo(returns, [0] * len(returns))[0])


def _reinforce_pp(replicate: Replicate) -> float:
    """Without groups, in units of reward: what it divides by is the same for the whole update."""
    returns = _returns(replicate)
    deviation = float(np.std(returns, ddof=1))
    return float(reinforce_pp(returns)[0]) * deviation


def _gigpo(replicate: Replicate) -> float:
    _, rewards, owners, numbers, states = _rows(replicate)
    groups = [0] * len(rewards)
    found = gigpo(rewards, owners, numbers, groups, states, normalize=False)
    # it adds two estimates of the same advantage
    return float(found[replicate.step]) / 2


def _gae(lam: float) -> Estimator:
    def estimate(replicate: Replicate) -> float:
        own = replicate.own
        dones = [0.0] * (len(own.rewards) - 1) + [1.0]
        return float(gae(own.rewards, own.values, dones, 1.0, lam)[0][replicate.step])

    return estimate


def _tree(replicate: Replicate) -> tuple[list[float], list[int], list[int], int]:
    """(rewards, previous, episodes, number of the step): what precedes and follows as one transition."""
    before = sum(replicate.own.rewards[: replicate.step])
    later = sum(replicate.own.rewards[replicate.step :])
    rewards, previous, episodes = [before, later], [-1, 0], [0, 0]
    for episode, value in enumerate(replicate.branches, start=1):
        rewards.append(value)
        previous.append(0)
        episodes.append(episode)
    for other in replicate.others:
        rewards.append(sum(other.rewards))
        previous.append(-1)
        episodes.append(episodes[-1] + 1)
    return rewards, previous, episodes, 1


def _tree_grpo(replicate: Replicate) -> float:
    rewards, previous, episodes, step = _tree(replicate)
    groups = [0] * len(rewards)
    # as GiGPO, it adds two estimates of the same advantage
    return float(tree_grpo(rewards, previous, groups, episodes, 1.0, normalize=False)[step]) / 2


def _vineppo(replicate: Replicate) -> float:
    rewards, previous, _, step = _tree(replicate)
    return float(vineppo(rewards, previous, [0] * len(rewards))[step])


@dataclass(frozen=True, slots=True)
class Method:
    """An estimator with the sizes it is used with."""

    name: str
    estimate: Estimator
    group_size: int
    branches: int = 1

    @property
    def title(self) -> str:
        """Name and sizes."""
        return f"{self.name}, {self.group_size} episodes" + (
            f", {self.branches} branches" if self.branches > 1 else ""
        )


def methods(group_sizes: Sequence[int], branches: Sequence[int]) -> list[Method]:
    """All estimators: GAE, which uses no group, and those that compare branches at the smallest size."""
    plain = {"GRPO": _grpo, "RLOO": _rloo, "REINFORCE++": _reinforce_pp, "GiGPO": _gigpo}
    found = [Method(name, f, size) for name, f in plain.items() for size in group_sizes]
    critic = {"GAE (lambda 1)": _gae(1.0), "GAE (lambda 0.95)": _gae(0.95)}
    found += [Method(name, f, min(group_sizes)) for name, f in critic.items()]
    for name, function in (("tree_grpo", _tree_grpo), ("vineppo", _vineppo)):
        found += [Method(name, function, min(group_sizes), count) for count in branches]
    return found


def replicates(
    task: Measured, target: Target, method: Method, count: int, rng: np.random.Generator
) -> list[Replicate]:
    """Resampled updates that hold the target's step."""
    own = task.episodes[target.episode]
    others = [e for i, e in enumerate(task.episodes) if i != target.episode]
    found = []
    for number in range(min(count, len(target.futures))):
        future = target.futures[number]
        end = target.step + 1
        whole = Steps(
            own.rewards[:end] + future.rewards,
            own.states[:end] + future.states,
            own.values[:end] + future.values,
            own.tokens,
        )
        peers = rng.choice(len(others), min(method.group_size - 1, len(others)), replace=False)
        branches = rng.choice(target.from_state, method.branches - 1, replace=False)
        found.append(Replicate(whole, target.step, [others[i] for i in peers], branches.tolist()))
    return found


def tokens_a_step(task: Measured, target: Target, method: Method) -> float:
    """Sampled tokens of an update over the steps that it is an update of, one branching state an episode.

    The lengths of branches are those of continuations of the target's state.
    """
    tokens = float(np.mean([e.tokens for e in task.episodes]))
    steps = float(np.mean([len(e.rewards) for e in task.episodes]))
    extra = (method.branches - 1) * target.branch_tokens
    extra_steps = extra / tokens * steps
    return (tokens + extra) / (steps + extra_steps)


def tokens_a_group(task: Measured, target: Target, method: Method) -> float:
    """Sampled tokens of the episodes and branches of one task in an update."""
    tokens = float(np.mean([e.tokens for e in task.episodes]))
    return method.group_size * (tokens + (method.branches - 1) * target.branch_tokens)


def summary(
    tasks: Sequence[Measured], method: Method, count: int, seed: int, resamples: int = 1000
) -> dict[str, Any]:
    """Correlation, bias, variance and sign errors of one method, with 95 % intervals over tasks.

    Args:
        tasks: what was measured.
        method: the estimator.
        count: most replicates of a step.
        seed: of resampling.
        resamples: bootstrap resamples of the tasks.

    Returns:
        JSON values: ``correlation`` of estimates with the truth, ``bias`` (root mean square over steps of
        mean estimate - truth, with the noise of both taken off), ``variance`` (mean over steps),
        ``sign_errors`` (share of estimates with the wrong sign, where the truth is more than two standard
        errors from 0), each ``[value, low, high]``; ``tokens`` sampled for each step of an update, and
        ``group_tokens`` for all episodes of a task.
    """
    rng = np.random.default_rng(seed)
    by_task = []
    for task in tasks:
        rows = []
        for target in task.targets:
            found = [method.estimate(r) for r in replicates(task, target, method, count, rng)]
            if len(found) > 1:
                rows.append((target.advantage, target.error, np.asarray(found)))
        if rows:
            by_task.append(rows)
    if not by_task:
        raise ValueError("No step has two replicates: measure more continuations.")
    value = _statistics([row for rows in by_task for row in rows])
    resampled = []
    for _ in range(resamples):
        chosen = rng.integers(len(by_task), size=len(by_task))
        resampled.append(_statistics([row for i in chosen for row in by_task[i]]))
    result: dict[str, Any] = {"method": method.title, "steps": sum(map(len, by_task))}
    for name, number in value.items():
        sampled = [d[name] for d in resampled if d[name] is not None]
        low, high = np.percentile(sampled, [2.5, 97.5]) if sampled else (None, None)
        result[name] = [number, _json(low), _json(high)]
    pairs = [(task, target) for task in tasks for target in task.targets]
    return {
        **result,
        "tokens": float(np.mean([tokens_a_step(*pair, method) for pair in pairs])),
        "group_tokens": float(np.mean([tokens_a_group(*pair, method) for pair in pairs])),
    }


def _json(number: Any) -> float | None:
    return None if number is None else float(number)


def _statistics(rows: Sequence[tuple[float, float, np.ndarray]]) -> Mapping[str, float | None]:
    truth = np.concatenate([np.full(len(found), a) for a, _, found in rows])
    estimates = np.concatenate([found for _, _, found in rows])
    varies = truth.std() > 0 and estimates.std() > 0
    squares = [
        (found.mean() - a) ** 2 - found.var(ddof=1) / len(found) - error**2
        for a, error, found in rows
    ]
    clear = [(a, found) for a, error, found in rows if abs(a) > 2 * error]
    wrong = [np.mean(np.sign(found) != np.sign(a)) for a, found in clear]
    return {
        "correlation": float(np.corrcoef(truth, estimates)[0, 1]) if varies else None,
        "bias": math.sqrt(max(0.0, float(np.mean(squares)))),
        "variance": float(np.mean([found.var(ddof=1) for _, _, found in rows])),
        "sign_errors": float(np.mean(wrong)) if wrong else None,
    }
