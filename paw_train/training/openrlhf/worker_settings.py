"""The run's settings in the processes that Ray starts: carried by an environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from paw_train.settings import Settings

VARIABLE = "PAW_OPENRLHF_SETTINGS"


def worker_environment(settings: Settings) -> dict[str, str]:
    """Environment variables that every worker of the run needs."""
    return {VARIABLE: json.dumps(settings.to_dict())}


def worker_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of the run that this process is a worker of.

    Raises:
        RuntimeError: it is none.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE)
    if text is None:
        raise RuntimeError(
            f"{VARIABLE} is not set: workers of engine: openrlhf are started by `paw train`, which "
            "hands the settings to them."
        )
    return Settings.read(json.loads(text))
