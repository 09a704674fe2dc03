"""Branching rollouts: episodes, then further episodes from some of their states.

First the episodes of each group run, as in ``rollout``. Then states in them are chosen (``branch_points``),
the environment goes back to exactly these, and continuations are sampled from there. The result is a tree for
each group: its root is the task's initial state, and every episode is a path from there to a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paw_gym.pool import EnvPool, Slot, Snapshot
from paw_train.rollouts.policy import Policy, require_trainable
from paw_train.rollouts.rollout import (
    EpisodeRunner,
    Progress,
    Trajectory,
    require_whole_distribution,
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
        policy: gives the responses, with token ids and log-probabilities.
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
    pool.reset(task_ids)
    wanted = settings.branching
    if wanted.branches == 1:
        runner.run(progress)
        return runner.finished()
    states: dict[int, list[Snapshot]] = {}

    def keep(slot: Slot) -> None:
        states.setdefault(slot.index, []).append(pool.snapshot(slot))

    runner.run(progress, keep)
    for number, step in _points(runner):
        runner.fork(states[number][step], wanted.branches - 1)
    runner.run(progress)
    return runner.finished()


def _points(runner: EpisodeRunner) -> list[tuple[int, int]]:
    """(trajectory, step) of the states to go back to: the best of each episode, the next best, ..."""
    points = []
    for number, trajectory in enumerate(runner.trajectories):
        if trajectory.episode.error is None and trajectory.own:
            best = branch_points(_logprobs(runner, trajectory), runner.settings.branching.points)
            points += [(rank, number, step) for rank, step in enumerate(best)]
    return [(number, step) for _, number, step in sorted(points)]


def branch_points(logprobs: Sequence[Sequence[float]], points: int) -> list[int]:
    """At most ``points`` steps with the highest action entropy, best first; of equal ones, the earlier first.

    The entropy is PaW's estimate from the sampled tokens (Eq. 3), the mean of `-p log p`.

    Args:
        logprobs: [T] of each response's tokens, in nats.
        points: maximum number of steps.
    """
    scores = [sum(-math.exp(p) * p for p in ps) / max(1, len(ps)) for ps in logprobs]
    return sorted(range(len(scores)), key=lambda step: (-scores[step], step))[:points]


def _logprobs(runner: EpisodeRunner, trajectory: Trajectory) -> list[list[float]]:
    assert runner.recorder is not None  # require_trainable
    sampled = {
        turn: [row.logprob[place] for place in places]
        for row in runner.recorder.rows[trajectory.episode.episode_id]
        for turn, places in row.places(ACTION).items()
    }
    return [sampled.get(turn, []) for turn in range(len(trajectory.own))]
