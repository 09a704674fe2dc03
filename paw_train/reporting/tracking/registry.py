"""The trackers by name, and what each of them must be able to do."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from paw_gym.registry import Registry


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is opened with."""

    folder: Path
    """of the run"""
    project: str
    """under which the tracker groups runs (``tracking_project``)"""
    name: str
    settings: Mapping[str, Any]
    """of the run, JSON values"""
    id: str | None
    """what the tracker gave as ``id`` when the run was first opened; ``None``: it is opened now"""
    last: int
    """updates that the tracker has already"""


class Tracker(Protocol):
    """One run in one tracking program. Constructed with a ``TrackedRun``."""

    package: ClassVar[str]
    """module that must be installed"""
    extra: ClassVar[str]
    """the optional part of paw-gym that brings it"""

    def __init__(self, run: TrackedRun) -> None: ...

    @property
    def id(self) -> str:
        """By which the same run is opened again."""

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Takes the measurements of an update; the first is 1, and each comes once."""

    def summary(self, values: Mapping[str, float]) -> None:
        """Takes numbers that describe the whole run."""

    def file(self, path: Path) -> None:
        """Takes a file of the run as an artifact."""

    def close(self, finished: bool) -> None:
        """Ends the session; the run may be opened again unless it is ``finished``."""


_HERE = "paw_train.reporting.tracking"
TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    "paw_train.trackers",
    {
        "tensorboard": f"{_HERE}.tensorboard:TensorBoard",
        "wandb": f"{_HERE}.wandb:WeightsAndBiases",
        "trackio": f"{_HERE}.trackio:Trackio",
        "mlflow": f"{_HERE}.mlflow:MLflow",
    },
)
"""the trackers by name; add yours with ``@TRACKERS.register(name)``, or by an entry point"""


def require_trackers(names: Sequence[str]) -> None:
    """Checks that trackers exist and that their packages are installed, before a run starts.

    Raises:
        ValueError: there is no tracker of a name, or one is named twice; names the nearest.
        ModuleNotFoundError: a package is not installed; names what installs it.
    """
    for name in names:
        if name not in TRACKERS:
            from paw_gym.naming import did_you_mean

            raise ValueError(
                f"tracking: {name!r} is no tracker. {did_you_mean(name, TRACKERS.names())}"
            )
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
