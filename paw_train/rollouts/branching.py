"""Branching rollouts: episodes, then further episodes from chosen states of theirs.

A rollout runs in levels. Level 0 runs the episodes of each group, as ``rollout`` does. Each further
level chooses states of the episodes of the level before (``branch_points``), goes back to exactly
these states, and samples continuations from there. The result is a tree for each group: its root is the
task's initial state, and every episode is a path from there to a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paw_gym.pool import EnvPool, Slot, Snapshot
from paw_train.rollouts.branch_points import Path, branch_points
from paw_train.rollouts.policy import Policy, require_trainable
from paw_train.rollouts.rollout import (
    EpisodeRunner,
    Progress,
    Trajectory,
    require_whole_distribution,
    sampled_tokens,
    sampling_seed,
)
from paw_train.rollouts.tokens import ACTION
from paw_train.settings.rollout import RolloutSettings

if TYPE_CHECKING:
    import torch


def branching_rollout(
    policy: Policy,
    pool: EnvPool,
    settings: RolloutSettings,
    generator: torch.Generator | int,
    task_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Runs one batch of episodes to their ends, and branches of them as ``settings.branching`` asks.

    With ``branches: 1`` this is ``rollout``. Equal seeds give equal trees. Branches share the
    randomness of the environment (its generator is part of the state that they begin in), and each
    samples its own responses.

    Args:
        policy: answers; with token ids and log-probabilities.
        pool: the environments.
        settings: sampling, limits, branching.
        generator: as for ``rollout``.
        task_ids: as for ``rollout``.
        progress: called with (running, all) episodes after each step.

    Returns:
        A trajectory for each episode: those of the groups in the pool's order, then the branches, each
        after its parent.

    Raises:
        ValueError: as for ``rollout``; or an environment cannot go back to a state (it is named).
    """
    require_trainable(policy)
    require_whole_distribution(settings)
    runner = EpisodeRunner(policy, pool, settings, sampling_seed(generator))
    run = _BranchingRun(runner)
    pool.reset(task_ids)
    run.level(progress)
    for _ in range(settings.branching.depth if settings.branching.branches > 1 else 0):
        if not run.branch():
            break
        run.level(progress)
    return runner.finished()


@dataclass(frozen=True, slots=True)
class _Point:
    """A state to go back to."""

    rank: int
    """0: the best of its episode"""
    episode: int
    """number of the trajectory"""
    step: int
    """own step of the episode, before whose response it is"""
    cost: int
    """tokens that the episode sampled from there on"""


@dataclass(slots=True)
class _BranchingRun:
    """The levels of one branching rollout."""

    runner: EpisodeRunner
    snapshots: dict[int, list[Snapshot]] = field(default_factory=dict)
    """by trajectory of the newest level, one for each of its own steps"""
    first: int = 0
    """the first trajectory of the newest level"""

    def level(self, progress: Progress | None) -> None:
        """Runs the active episodes, and keeps the states that the next level may go back to."""
        wanted = self.runner.settings.branching.branches > 1
        self.runner.run(progress, self._keep if wanted else None)

    def _keep(self, slot: Slot) -> None:
        states = self.snapshots.setdefault(slot.index, [])
        states.append(self.runner.pool.snapshot(slot))

    def branch(self) -> bool:
        """Starts the branches of the next level; False where nothing branches."""
        runner, settings = self.runner, self.runner.settings.branching
        points = affordable(self._points(), settings.branches - 1, self._tokens_left())
        states, self.snapshots = self.snapshots, {}
        self.first = len(runner.trajectories)
        for point in points:
            runner.fork(states[point.episode][point.step], settings.branches - 1)
        return bool(points)

    def _points(self) -> list[_Point]:
        """The states of the newest level that are to branch, the best of each episode first."""
        runner, settings = self.runner, self.runner.settings.branching
        paths = {i: self._path(i) for i in self._complete()}
        points = []
        for number, path in paths.items():
            if number < self.first:
                continue
            group = [other for other in paths.values() if other.group == path.group]
            chosen = branch_points(path, group, settings.criterion, settings.points, runner.seed)
            lengths = [len(logprobs) for logprobs in path.logprobs]
            points += [
                _Point(rank, number, step, sum(lengths[step:])) for rank, step in enumerate(chosen)
            ]
        return sorted(points, key=lambda point: (point.rank, point.episode))

    def _complete(self) -> list[int]:
        """The trajectories that did not fail."""
        trajectories = self.runner.trajectories
        return [i for i, t in enumerate(trajectories) if t.episode.error is None and t.own]

    def _path(self, number: int) -> Path:
        assert self.runner.recorder is not None  # require_trainable
        trajectory = self.runner.trajectories[number]
        episode = trajectory.episode
        rows = self.runner.recorder.rows[episode.episode_id]
        sampled = {
            turn: [row.logprob[place] for place in places]
            for row in rows
            for turn, places in row.places(ACTION).items()
        }
        met = [t.observation for t in episode.transitions]
        return Path(
            episode.episode_id,
            episode.group,
            [sampled.get(turn, []) for turn in range(len(trajectory.own))],
            observations=met[episode.shared_steps :],
            shared=met[: episode.shared_steps],
            total_reward=episode.total_reward,
        )

    def _tokens_left(self) -> int | None:
        """Of the update's budget of sampled tokens; ``None``: there is none."""
        budget = self.runner.settings.branching.max_tokens
        if budget is None:
            return None
        return budget - sampled_tokens(self.runner.finished())


def affordable(points: Sequence[_Point], times: int, tokens: int | None) -> list[_Point]:
    """The points whose branches fit into what is left of a budget, in order.

    A branch is taken to be as long as the continuation that its parent sampled.

    Args:
        points: in order of preference.
        times: branches of each.
        tokens: what is left; ``None``: no limit.
    """
    if tokens is None:
        return list(points)
    taken = []
    for point in points:
        if point.cost * times <= tokens:
            tokens -= point.cost * times
            taken.append(point)
    return taken
