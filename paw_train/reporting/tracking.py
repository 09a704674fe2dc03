"""Experiment tracking: sends a run's measurements and results to the programs that ``tracking`` names.

Trackers follow the run's files: ``metrics.jsonl`` is authoritative, and ``tracking.json`` says how much of it
each tracker has, so that an update arrives once, however often the run is stopped.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol
from uuid import uuid4

from paw_gym.internals.files import write_json
from paw_gym.internals.registry import Registry

STATE = "tracking.json"
"""in a run's folder: by tracker, the ``id`` that it gave the run, and the ``last`` update that it has"""
_NOT_MEASURED = ("update", "time")
_ARTIFACTS = ("config.json", "metrics.jsonl", "validation.jsonl", "eval_before.json", "eval_after.json",
              "report.html")  # fmt: skip
"""files of a finished run; those that exist are handed over"""


@dataclass(frozen=True)
class TrackedRun:
    """Arguments of a tracker."""

    folder: Path
    """of the run"""
    name: str
    settings: Mapping[str, Any]
    """of the run, JSON values"""
    id: str | None
    """the tracker's ``id`` from when the run was first opened; ``None``: it is opened now"""
    last: int
    """updates that the tracker already has"""


class Tracker(Protocol):
    """One run in one tracking program. Constructed with a ``TrackedRun``."""

    package: ClassVar[str]
    """module that must be installed"""
    extra: ClassVar[str]
    """the optional part of paw-gym that installs it"""
    id: str
    """identifies the run when it is opened again"""

    def __init__(self, run: TrackedRun) -> None: ...

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Takes the measurements of an update; the first is 1, and each comes once."""

    def summary(self, update: int, values: Mapping[str, float]) -> None:
        """Takes numbers that describe the whole run, which ended with ``update``."""

    def file(self, path: Path) -> None:
        """Takes a file of the run as an artifact."""

    def close(self) -> None:
        """Ends the session; the run may be opened again."""


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "paw_train.trackers")
"""the trackers by name; add yours with ``@TRACKERS.register(name)``, or with an entry point"""


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files in the run's own folder. A JSON file becomes a text, any other file its path."""

    package, extra = "tensorboard", "train"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.id = run.name
        # events after the last recorded update are from a process that was killed
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.last + 1)

    def log(self, update: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)
        self._writer.flush()

    summary = log

    def file(self, path: Path) -> None:
        is_json = path.suffix == ".json"
        text = path.read_text(encoding="utf-8") if is_json else str(path)
        self._writer.add_text(path.name, f"<pre>{text}</pre>" if is_json else text)

    def close(self) -> None:
        self._writer.close()


@TRACKERS.register("wandb")
class WeightsAndBiases:
    """A run of ``wandb``; ``WANDB_MODE=offline`` writes into the run's folder, for ``wandb sync`` later."""

    package = extra = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.id = run.id or uuid4().hex[:12]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "paw-gym"),
            name=run.name,
            id=self.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
        )

    def log(self, update: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=update)

    def summary(self, update: int, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def file(self, path: Path) -> None:
        name = re.sub(r"[^\w.-]", "-", f"{self.id}-{path.name}")
        kind = "report" if path.suffix == ".html" else "results"
        self._run.log_artifact(str(path), name=name, type=kind)

    def close(self) -> None:
        self._run.finish()


def require_trackers(names: Sequence[str]) -> None:
    """Checks that trackers exist and that their packages are installed, before a run starts."""
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(f"tracking: {name!r} is named twice.")
        tracker = TRACKERS[name]
        try:
            importlib.import_module(tracker.package)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"tracking={name} needs the package {tracker.package!r}, which cannot be imported "
                f'({error}): pip install ".[{tracker.extra}]" in your clone of PaW-Gym, or leave {name} out '
                "of tracking.",
                name=tracker.package,
            ) from None


class Tracking(ExitStack):
    """The trackers of one run, opened when there is something to hand over, and closed at the end."""

    def __init__(
        self, folder: Path, name: str, trackers: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.folder = folder
        self._name, self._names = name, list(trackers)
        self._settings = settings
        self._open: dict[str, Tracker] = {}
        self._state: dict[str, dict[str, Any]] = {}

    def _trackers(self) -> dict[str, Tracker]:
        """The trackers, opened; a run that they already know is continued."""
        if self._open or not self._names:
            return self._open
        self.callback(self._open.clear)  # it may be entered again
        path = self.folder / STATE
        self._state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name in self._names:
            known = self._state.get(name, {"id": None, "last": 0})
            run = TrackedRun(self.folder, self._name, self._settings, known["id"], known["last"])
            self._open[name] = TRACKERS[name](run)
            self.callback(self._open[name].close)
            self._state[name] = {**known, "id": self._open[name].id}
            write_json(path, self._state)
        return self._open

    def follow(self) -> None:
        """Hands over the updates in ``metrics.jsonl`` that a tracker does not have yet."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for name, tracker in self._trackers().items():
            for row in rows:
                if row["update"] > self._state[name]["last"]:
                    # noted first: a kill in between may lose a point, but never writes one twice
                    self._state[name]["last"] = row["update"]
                    write_json(self.folder / STATE, self._state)
                    tracker.log(row["update"], _numbers(row))

    def finish(self) -> None:
        """Hands over the results of the finished run: success before and after, report, settings."""
        self.follow()
        summary = _summary(self.folder)
        for name, tracker in self._trackers().items():
            tracker.summary(self._state[name]["last"], summary)
            for artifact in _ARTIFACTS:
                if (self.folder / artifact).is_file():
                    tracker.file(self.folder / artifact)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name not in _NOT_MEASURED and isinstance(value, int | float) and math.isfinite(value)
    }


def _summary(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for when in ("before", "after"):
        path = folder / f"eval_{when}.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if result.get("success_rate") is not None:
            numbers = (result["success_rate"], *result["ci95"])
            names = ("success_rate", "ci95_low", "ci95_high")
            found |= {f"eval_{when}/{name}": x for name, x in zip(names, numbers, strict=True)}
    return found
