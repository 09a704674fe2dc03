"""Feeds the trackers of a run from its files: each update once, however often the run is stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paw_gym.files import write_json
from paw_train.reporting.tracking.registry import TRACKERS, TrackedRun, Tracker

STATE = "tracking.json"
"""in a run's folder: by tracker the ``id`` of the run there, and the ``last`` update that it has"""
_NOT_MEASURED = ("update", "time")
_ARTIFACTS = ("config.json", "metrics.jsonl", "validation.jsonl", "eval_before.json", "eval_after.json",
              "report.html")  # fmt: skip
"""files of a finished run; those that are there are handed over"""


class Tracking:
    """The trackers of one run, opened when there is something to hand over.

    A context manager, which closes them however it ends; it may be entered again.

    Args:
        folder: of the run.
        name: of the run.
        trackers: their names.
        project: under which they group runs.
        settings: of the run, JSON values.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        trackers: Sequence[str],
        project: str,
        settings: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self._name, self._names = name, list(trackers)
        self._project, self._settings = project, settings
        self._open: dict[str, Tracker] = {}
        self._state: dict[str, dict[str, Any]] = {}
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tracker in self._open.values():
            tracker.close(self._finished)
        self._open = {}

    def _trackers(self) -> dict[str, Tracker]:
        """The trackers, opened; a run that they know already is continued."""
        if self._open or not self._names:
            return self._open
        path = self.folder / STATE
        self._state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name in self._names:
            known = self._state.get(name, {"id": None, "last": 0})
            run = TrackedRun(
                self.folder, self._project, self._name, self._settings, known["id"], known["last"]
            )
            self._open[name] = TRACKERS[name](run)
            self._state[name] = {**known, "id": self._open[name].id}
            self._save()
        return self._open

    def _save(self) -> None:
        write_json(self.folder / STATE, self._state)

    def follow(self) -> None:
        """Hands over the updates in ``metrics.jsonl`` that a tracker does not have yet."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for name, tracker in self._trackers().items():
            for row in rows:
                if row["update"] > self._state[name]["last"]:
                    # noted first: a kill in between may lose a point, and never writes one twice
                    self._state[name]["last"] = row["update"]
                    self._save()
                    tracker.log(row["update"], numbers(row))

    def finish(self) -> None:
        """Hands over what the finished run has led to: results before and after, report, settings."""
        self.follow()
        summary = _summary(self.folder)
        for tracker in self._trackers().values():
            tracker.summary(summary)
            for name in _ARTIFACTS:
                if (self.folder / name).is_file():
                    tracker.file(self.folder / name)
        self._finished = True


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The measurements in a line of ``metrics.jsonl``; what is not a finite number is left out."""
    return {
        name: float(value)
        for name, value in row.items()
        if name not in _NOT_MEASURED and isinstance(value, int | float) and math.isfinite(value)
    }


def _summary(folder: Path) -> dict[str, float]:
    """Success on the panel before and after, with its interval."""
    found: dict[str, float] = {}
    for when in ("before", "after"):
        path = folder / f"eval_{when}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["success_rate"] is not None:
            low, high = result["ci95"]
            found |= {
                f"eval_{when}/success_rate": result["success_rate"],
                f"eval_{when}/ci95_low": low,
                f"eval_{when}/ci95_high": high,
            }
    return found
