"""TensorBoard: event files in the run's own folder, ``tensorboard/``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from paw_train.reporting.tracking.registry import TrackedRun


class TensorBoard:
    """A run as event files. Artifacts are texts: small files whole, others by their path."""

    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "train"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._last = run.last
        # events behind the last recorded update are of a process that was killed
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.last + 1)

    @property
    def id(self) -> str:
        """The folder's name."""
        return self._run.name

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)
        self._writer.flush()
        self._last = update

    def summary(self, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last)

    def file(self, path: Path) -> None:
        """See ``Tracker``."""
        if path.suffix == ".json":
            data = json.loads(path.read_text(encoding="utf-8"))
            text = "\n".join(f"    {line}" for line in json.dumps(data, indent=1).splitlines())
        else:
            text = str(path)
        self._writer.add_text(path.name, text, self._last)

    def close(self, finished: bool) -> None:
        """See ``Tracker``."""
        self._writer.close()
