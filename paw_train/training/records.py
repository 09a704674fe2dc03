"""Records of an update, under the same names in every engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paw_gym.internals.files import append_jsonl, truncate_jsonl
from paw_train.algorithms.pool import informative_groups
from paw_train.rollouts.rollout import Trajectory, timed_out

EVENTS = "events.jsonl"
"""in a run's folder: settings that changed on the way, and lines of its logs that were lost"""


def note_event(folder: Path, event: str, **values: Any) -> None:
    """Adds a line to a run's events."""
    append_jsonl(folder / EVENTS, {"event": event, **values, "time": time.time()})


def cut_logs(folder: Path, names: Sequence[str], done: int, say: Callable[[str], None]) -> None:
    """Drops from a run's logs what is of updates after the first ``done``; they are computed again.

    Lines that cannot be read are reported and noted.
    """
    for name in names:
        damaged = truncate_jsonl(folder / name, "update", done + 1)
        if damaged:
            say(
                f"{folder / name}: line {', '.join(map(str, damaged))} was cut short and is dropped; its "
                f"update is missing there unless it comes after update {done}."
            )
            note_event(
                folder, "damaged lines dropped", file=name, lines=damaged, resumed_after=done
            )


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Outcomes of an update's episodes; failed ones are counted and left out of the means.

    Branches are left out as well: they begin where the policy was uncertain, so their success is not
    that of the policy.
    """
    trajectories = [t for t in trajectories if t.episode.parent is None]
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
