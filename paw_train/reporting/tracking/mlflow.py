"""MLflow: the server or store in ``MLFLOW_TRACKING_URI``, else a SQLite store beside the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from paw_train.reporting.tracking.registry import TrackedRun
from paw_train.settings.dotted import flatten


class MLflow:
    """A run of MLflow, by its client: nothing of MLflow's global state is touched."""

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        store = (run.folder.parent / "mlflow.db").resolve()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store}")
        self._id = run.id or self._created(run)
        self._client.update_run(self._id, status="RUNNING")

    def _created(self, run: TrackedRun) -> str:
        found = self._client.get_experiment_by_name(run.project)
        place = str((run.folder.parent / "mlflow-artifacts").resolve())
        own = None if os.environ.get("MLFLOW_TRACKING_URI") else place
        experiment = (
            found.experiment_id if found else self._client.create_experiment(run.project, own)
        )
        made = self._client.create_run(experiment, run_name=run.name)
        for name, value in flatten(run.settings):
            self._client.log_param(made.info.run_id, name, str(value)[:500])
        return str(made.info.run_id)

    @property
    def id(self) -> str:
        """The run's id in MLflow."""
        return self._id

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=update)

    def summary(self, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        for name, value in values.items():
            self._client.log_metric(self._id, name, value)

    def file(self, path: Path) -> None:
        """See ``Tracker``."""
        self._client.log_artifact(self._id, str(path))

    def close(self, finished: bool) -> None:
        """See ``Tracker``."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
