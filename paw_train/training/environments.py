"""The environments that a run is trained on, one or several: their pools, and each one's part in an update.

Each environment has a pool of its own, with a generator of its own, so its tasks do not depend on the
others. An update's groups are divided among them by weight; their rollouts follow one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paw_gym.pool import EnvPool
from paw_train.algorithms.pool import informative_groups
from paw_train.environments import agent_env_maker, make_pool, max_return, training_env
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Policy
from paw_train.rollouts.rollout import Progress, Trajectory, rollout
from paw_train.settings import Settings
from paw_train.settings.env import Member

_SHARES = 2
"""part of the seeds of the division of groups"""
_BY_ENVIRONMENT = (
    "success_rate",
    "reward_mean",
    "equal_groups",
    "steps_mean",
    "invalid_rate",
    "refused_rate",
)
"""outcomes that are measured for each environment of several"""


def require_room_for_tasks(settings: Settings, chat: ChatFormat) -> None:
    """Raises ``ValueError`` if a first prompt does not fit the context; one of each environment is tried.

    Rollouts would raise it as well, after the warm start.
    """
    for member in settings.members:
        env = agent_env_maker(training_env(member.env), member.env.train_split)()
        try:
            prompt, info = env.reset(seed=settings.seed)
            chat.first_within(prompt, info["instruction"], settings.rollout.max_prompt_tokens)
        except ValueError as error:
            error.add_note(f"(a task of {member.name})")
            raise
        finally:
            env.close()


class TrainingEnvironments:
    """The pools of a run's environments."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.members = settings, settings.members
        self.pools = [self._pool(number, member) for number, member in enumerate(self.members)]

    def _pool(self, number: int, member: Member) -> EnvPool:
        rollout, seed = self.settings.rollout, member_seed(self.settings.seed + 1, number)
        env, split = training_env(member.env), member.env.train_split
        return make_pool(env, split, rollout.groups, rollout.group_size, seed)

    def set_progress(self, fraction: float) -> None:
        """Tells every environment the share of training that is done."""
        for pool in self.pools:
            pool.set_progress(fraction)

    def sample(
        self, sampler: Policy, update: int, generator: torch.Generator, progress: Progress
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """One update's episodes: (all that were sampled, those to learn from).

        They differ under DAPO's dynamic sampling only: groups whose returns are all equal are
        replaced by further ones of the same environment, as far as the allowed rollouts bring any.
        """
        s = self.settings
        rng = np.random.default_rng([s.seed, _SHARES, update])
        counts = divided(s.rollout.groups, [m.weight for m in self.members], rng)
        sampled: list[Trajectory] = []
        kept: list[Trajectory] = []
        for member, pool, count in zip(self.members, self.pools, counts, strict=True):
            if not count:
                continue
            pool.groups = count
            first = 1 + max((t.episode.group for t in sampled), default=-1)
            new, good = _informative(
                lambda pool=pool: rollout(  # type: ignore[misc]
                    sampler, pool, s.rollout, generator, progress=progress
                ),
                count,
                s.algorithm.dynamic_sampling,
            )
            new = _moved(new, first, member.name if s.mixed else "")
            sampled += new
            kept += [t for t in new if t.episode.group - first in good]
        return sampled, kept

    def metrics(self, sampled: Sequence[Trajectory]) -> dict[str, Any]:
        """Outcomes of an update's episodes; with several environments also of each: ``metric/name``."""
        found = outcome_metrics(sampled)
        if not self.settings.mixed:
            return found
        for member in self.members:
            own = [t for t in sampled if t.environment == member.name]
            if own:
                values = outcome_metrics(own)
                found |= {f"{k}/{member.name}": values[k] for k in _BY_ENVIRONMENT if k in values}
        return found

    def recorded(self, sampled: Sequence[Trajectory], groups: int) -> list[Trajectory]:
        """The episodes of each environment's first ``groups`` groups."""
        first: dict[str, int] = {}
        for trajectory in sampled:
            first.setdefault(trajectory.environment, trajectory.episode.group)
        return [t for t in sampled if t.episode.group < first[t.environment] + groups]

    def state_dict(self) -> dict[str, Any]:
        """The state that makes the next update's tasks the same."""
        states = [pool.state_dict() for pool in self.pools]
        return {"members": states} if self.settings.mixed else states[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        states = state["members"] if self.settings.mixed else [state]
        for pool, own in zip(self.pools, states, strict=True):
            pool.load_state_dict(own)

    def close(self) -> None:
        """Closes the environments."""
        for pool in self.pools:
            pool.close()


def max_returns(settings: Settings) -> float | Mapping[str, float]:
    """R_max of a run of one environment; of several, that of each by its name."""
    found = {member.name: max_return(member.env) for member in settings.members}
    return found if settings.mixed else next(iter(found.values()))


def divided(count: int, weights: Sequence[float], rng: np.random.Generator | None) -> list[int]:
    """A number of things divided by weight: systematic sampling (Cochran, Sampling Techniques, 1977, 8).

    Each share is rounded down or up, and is right on average; a share below 1 is sometimes 0.

    Args:
        rng: decides what is rounded up; ``None``: it is rounded to the nearest.
    """
    start = 0.5 if rng is None else float(rng.random())
    ends = np.cumsum(np.asarray(weights, dtype=float))
    ends = ends / ends[-1] * count
    bounds = np.floor(ends + start).astype(int)
    bounds[-1] = count
    return [int(n) for n in np.diff(bounds, prepend=0)]


def member_seed(seed: int, number: int) -> int:
    """The seed of an environment of a run: for the first, the run's own."""
    return seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _informative(
    roll_out: Callable[[], list[Trajectory]], groups: int, extra: int
) -> tuple[list[Trajectory], set[int]]:
    """(all sampled, groups to learn from) of one environment, with up to ``extra`` more rollouts."""
    sampled, first = roll_out(), set(range(groups))
    if not extra:
        return sampled, first
    for number in range(1, extra + 1):
        if len(informative_groups(sampled)) >= groups:
            break
        sampled = [*sampled, *_moved(roll_out(), number * groups)]
    # nothing to learn from: still only an update's groups, or they would outweigh other environments
    return sampled, set(sorted(informative_groups(sampled))[:groups]) or first


def _moved(trajectories: Sequence[Trajectory], by: int, environment: str = "") -> list[Trajectory]:
    """The same trajectories of an environment, with group numbers higher by ``by``."""
    return [
        replace(t, episode=replace(t.episode, group=t.episode.group + by), environment=environment)
        for t in trajectories
    ]


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Outcomes of an update's episodes; failed ones are counted and left out of the means."""
    good = [t for t in trajectories if t.episode.error is None]
    episodes = [t.episode for t in good]
    steps = [t for e in episodes for t in e.transitions]
    count = max(1, len(episodes))
    found = {
        "reward_mean": sum(e.total_reward for e in episodes) / count,
        "success_rate": sum(e.success for e in episodes) / count,
        "steps_mean": len(steps) / count,
        "invalid_rate": sum(not t.action_is_valid for t in steps) / max(1, len(steps)),
        "refused_rate": sum(t.refused for t in steps) / max(1, len(steps)),
        "failed_episodes": len(trajectories) - len(episodes),
        "prompt_cut_rate": sum(row.prompt_tokens_cut > 0 for t in good for row in t.rows)
        / max(1, len(steps)),
    }
    compared = sum(size > 1 for size in Counter(e.group for e in episodes).values())
    if compared:
        found["equal_groups"] = 1 - len(informative_groups(trajectories)) / compared
    return found
