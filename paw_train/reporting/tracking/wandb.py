"""Weights & Biases. ``WANDB_MODE=offline`` writes into the run's folder, for ``wandb sync`` later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from paw_train.reporting.tracking.registry import TrackedRun


class WeightsAndBiases:
    """A run of ``wandb``; mode, host and key are its own environment variables."""

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._id = run.id or uuid4().hex[:12]
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=self._id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
        )

    @property
    def id(self) -> str:
        """The run's id in ``wandb``."""
        return self._id

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.log(dict(values), step=update)

    def summary(self, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.summary.update(dict(values))

    def file(self, path: Path) -> None:
        """See ``Tracker``."""
        import wandb

        name = re.sub(r"[^\w.-]", "-", f"{self._id}-{path.name}")
        artifact = wandb.Artifact(name, type="report" if path.suffix == ".html" else "results")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, finished: bool) -> None:
        """See ``Tracker``."""
        self._run.finish()
