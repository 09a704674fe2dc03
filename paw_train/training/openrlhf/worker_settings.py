"""The run's settings in the processes that Ray starts: carried by an environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from paw_train.settings import Settings

VARIABLE = "PAW_OPENRLHF_SETTINGS"

VLLM = {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"}
"""vLLM 0.29's first model runner and Ray executor: the second ones, its defaults on a GPU, were never run
with the weight updates of this engine. A variable that is set where the run starts is taken as it is"""


def worker_environment(settings: Settings) -> dict[str, str]:
    """Environment variables that every worker of the run needs."""
    chosen = {name: os.environ.get(name, value) for name, value in VLLM.items()}
    return {VARIABLE: json.dumps(settings.to_dict()), **chosen}


def worker_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of the run that this process is a worker of."""
    text = (os.environ if environment is None else environment).get(VARIABLE)
    if text is None:
        raise RuntimeError(
            f"{VARIABLE} is not set: workers of engine: openrlhf are started by `paw train`, which "
            "hands the settings to them."
        )
    return Settings.read(json.loads(text))
