"""The files of a run that its trainer writes, beside OpenRLHF's checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paw_gym.internals.files import append_jsonl
from paw_gym.transition import Episode
from paw_train.evaluation.statistics import wilson_interval
from paw_train.policies.checkpoints import cut_logs
from paw_train.reporting.run.alarms import Alarm, find_alarms
from paw_train.reporting.run.data import read_records
from paw_train.reporting.tracking import Tracking
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import Settings


class RunRecords:
    """``metrics.jsonl``, ``validation.jsonl`` and ``failures.jsonl`` of a run."""

    def __init__(self, folder: Path, tracking: Tracking | None = None) -> None:
        self.folder = folder
        self.tracking = tracking

    def resume(self, done: int) -> None:
        """Drops what belongs to updates after the first ``done``: they are computed again."""
        cut_logs(self.folder, ("metrics.jsonl", "failures.jsonl", "validation.jsonl"), done, print)

    def update(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Adds the measurements of an update (the first is 1)."""
        numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
        row = {"update": update, **numbers, "time": time.time()}
        append_jsonl(self.folder / "metrics.jsonl", row)
        if self.tracking is not None:
            self.tracking.follow()

    def raised(self, update: int, wm_loss: str | None) -> list[Alarm]:
        """The alarms that an update's measurements have raised; call it after ``update``."""
        rows = list(read_records(self.folder / "metrics.jsonl", "update").by_key.values())
        return [alarm for alarm in find_alarms(rows, wm_loss) if alarm.first == update]

    def failures(
        self, update: int, during: str, trajectories: Sequence[Trajectory]
    ) -> list[Episode]:
        """Adds every episode that failed, its traceback with it; returns them."""
        failed = [t.episode for t in trajectories if t.episode.error is not None]
        for episode in failed:
            row = {
                "update": update,
                "during": during,
                "task_id": episode.task_id,
                "episode_id": episode.episode_id,
                "steps": len(episode.transitions),
                "error": episode.error,
            }
            append_jsonl(self.folder / "failures.jsonl", row)
        return failed

    def validation(self, updates: int, trajectories: Sequence[Trajectory]) -> None:
        """Adds success on the selection panel after so many updates; a failed episode counts as none."""
        good = [t.episode for t in trajectories if t.episode.error is None]
        n, successes = len(trajectories), sum(bool(e.success) for e in good)
        row = {
            "update": updates,
            "success_rate": successes / n,
            "n": n,
            "ci95": list(wilson_interval(successes, n)),
            "score": sum(e.score for e in good) / n,
            "errors": n - len(good),
        }
        append_jsonl(self.folder / "validation.jsonl", row)


def cluster_tracking(settings: Settings) -> Tracking:
    """The trackers of a run of this engine; TensorBoard's files are written by OpenRLHF itself."""
    folder = Path(settings.out) / settings.name
    names = [name for name in settings.tracking if name != "tensorboard"]
    recorded = json.loads(json.dumps(settings.to_dict()))
    return Tracking(folder, settings.name, names, recorded)
