"""Trackio: local first; its files are in ``TRACKIO_DIR``, and ``trackio show`` opens them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from paw_train.reporting.tracking.registry import TrackedRun


class Trackio:
    """A run of ``trackio``, which knows runs by their names: a unique part is put behind the run's own."""

    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._id = run.id or f"{run.name}-{uuid4().hex[:6]}"
        self._last = run.last
        self._run = trackio.init(
            project=run.project,
            name=self._id,
            resume="allow",
            config=dict(run.settings),
            embed=False,
        )

    @property
    def id(self) -> str:
        """The run's name in ``trackio``."""
        return self._id

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        import trackio

        trackio.log(dict(values), step=update)
        self._last = update

    def summary(self, values: Mapping[str, float]) -> None:
        """Logged with one step more than the last update, since ``trackio`` has no summaries."""
        import trackio

        if values:
            trackio.log(dict(values), step=self._last + 1)

    def file(self, path: Path) -> None:
        """See ``Tracker``."""
        import trackio

        trackio.save(path)

    def close(self, finished: bool) -> None:
        """See ``Tracker``."""
        import trackio

        trackio.finish()
