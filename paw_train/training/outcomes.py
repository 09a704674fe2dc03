"""Outcomes of an update's episodes as metrics, under the same names in every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from paw_train.algorithms.pool import informative_groups
from paw_train.rollouts.rollout import Trajectory, timed_out


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Outcomes of an update's episodes; failed ones are counted and left out of the means."""
    episodes = [t.episode for t in trajectories if t.episode.error is None]
    steps = [t for e in episodes for t in e.transitions]
    count = max(1, len(episodes))
    return {
        "reward_mean": sum(e.total_reward for e in episodes) / count,
        "success_rate": sum(e.success for e in episodes) / count,
        "steps_mean": len(steps) / count,
        "invalid_rate": sum(not t.action_is_valid for t in steps) / max(1, len(steps)),
        "refused_rate": sum(t.refused for t in steps) / max(1, len(steps)),
        "failed_episodes": len(trajectories) - len(episodes),
        "timed_out_episodes": sum(map(timed_out, episodes)),
        "prompt_cut_rate": _cut(trajectories) / max(1, len(steps)),
        **_groups(trajectories),
    }


def _groups(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of groups whose returns are all equal; empty where no group has two episodes."""
    sizes = Counter(t.episode.group for t in trajectories if t.episode.error is None)
    compared = [group for group, size in sizes.items() if size > 1]
    if not compared:
        return {}
    return {"equal_groups": 1 - len(informative_groups(trajectories)) / len(compared)}


def _cut(trajectories: Sequence[Trajectory]) -> int:
    """Prompts that lost tokens to the context limit, of the episodes that did not fail."""
    good = [t for t in trajectories if t.episode.error is None]
    return sum(row.prompt_tokens_cut > 0 for t in good for row in t.rows)
