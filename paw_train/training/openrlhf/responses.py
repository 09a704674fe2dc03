"""An episode as OpenRLHF expects it of an agent, with the whole trajectory beside."""

from __future__ import annotations

from typing import Any

from paw_train.rollouts.rollout import Trajectory
from paw_train.training.openrlhf.episodes import GroupLabel


def response(trajectory: Trajectory, prompt: str, label: GroupLabel) -> dict[str, Any]:
    """The fields that ``SamplesGenerator`` reads, and ``trajectory``.

    Args:
        trajectory: the episode.
        prompt: the name of its row in the data set.
        label: of the episode.
    """
    episode, rows = trajectory.episode, trajectory.rows
    failed = episode.error is not None or not episode.transitions
    # validations are of success, training of return
    reward = float(episode.success) if label.validation else float(episode.total_reward)
    return {
        "prompt": prompt,
        "label": label.to_json(),
        "images": None,
        "mm_train_inputs": None,
        "reward": 0.0 if failed else reward,
        "scores": 0.0 if failed else float(episode.success),
        "observation_tokens": list(rows[-1].ids) if rows else [0, 0],
        "action_ranges": [step.action for step in rows[-1].steps] if rows else [],
        "rollout_log_probs": None,
        "truncated": bool(episode.transitions and episode.transitions[-1].truncated),
        "extra_logs": {},
        "trajectory": trajectory,
    }
