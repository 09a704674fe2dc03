"""What every engine writes about an update, under the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.rollouts.rollout import Trajectory
from paw_train.settings.world_model import WorldModelSettings


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What came of an update's episodes, failed ones counted and left out of the rest."""
    episodes = [t.episode for t in trajectories if t.episode.error is None]
    steps = [t for e in episodes for t in e.transitions]
    count = max(1, len(episodes))
    return {
        "reward_mean": sum(e.total_reward for e in episodes) / count,
        "success_rate": sum(e.success for e in episodes) / count,
        "steps_mean": len(steps) / count,
        "invalid_rate": sum(not t.action_is_valid for t in steps) / max(1, len(steps)),
        "failed_episodes": len(trajectories) - len(episodes),
        "prompt_cut_rate": _cut(trajectories) / max(1, len(steps)),
    }


class BlindWorldModel:
    """Notices that a bounded world-model loss learns nothing.

    The gradient of (clipped) MAE is `p (1 - p)`: it vanishes where the policy gives the observations a
    probability near 0, and the loss then stays near its largest value, 1.
    """

    NEAR_ONE, UPDATES = 0.95, 5

    def __init__(self, settings: WorldModelSettings) -> None:
        self.bounded = settings.wm == "on" and settings.loss in ("cmae", "mae")
        self.loss = settings.loss
        self.seen = 0

    def add(self, metrics: Mapping[str, Any]) -> str | None:
        """Takes an update's metrics; the warning, once, when enough of them in a row are near 1."""
        near = self.bounded and metrics.get("wm_loss", 0.0) >= self.NEAR_ONE
        self.seen = self.seen + 1 if near else 0
        if self.seen != self.UPDATES:
            return None
        return (
            f"Warning: wm_loss has been above {self.NEAR_ONE} for {self.UPDATES} updates. The gradient of "
            f"objective.wm.loss={self.loss} vanishes where observations are improbable, so nothing is "
            "learned from them: start from a policy that knows their language (a warm start with "
            "cloning.context_weight above 0), or use objective.wm.loss=gce or ce."
        )


def _cut(trajectories: Sequence[Trajectory]) -> int:
    """Prompts that lost tokens to the context limit, of the episodes that did not fail."""
    good = [t for t in trajectories if t.episode.error is None]
    return sum(row.prompt_tokens_cut > 0 for t in good for row in t.rows)
