"""Starts a run on a Ray cluster (``engine: openrlhf``)."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

from paw_train.config import Settings
from paw_train.engines.openrlhf import TESTED_VERSION
from paw_train.engines.openrlhf.mapping import require_possible


def require_openrlhf() -> None:
    """Raises unless OpenRLHF is here, in the version that the subclasses are made for.

    Raises:
        ModuleNotFoundError: it is not installed.
        ValueError: another version is.
    """
    if importlib.util.find_spec("openrlhf") is None:
        raise ModuleNotFoundError(
            "engine: openrlhf needs OpenRLHF, vLLM and DeepSpeed on a machine with CUDA: "
            "pip install 'paw-gym[openrlhf]'",
            name="openrlhf",
        )
    found = version("openrlhf")
    if found != TESTED_VERSION:
        raise ValueError(
            f"OpenRLHF {found} is installed, but this engine overrides methods of "
            f"{TESTED_VERSION}: pip install openrlhf=={TESTED_VERSION}"
        )


def train(settings: Settings, fresh: bool = False, quiet: bool = False) -> Path:
    """Trains by given settings; see ``paw_train.engines.local.train``.

    Raises:
        ValueError: a setting that this engine cannot do; all of them are named.
        ModuleNotFoundError: OpenRLHF is not installed.
    """
    require_possible(settings)
    require_openrlhf()
    raise NotImplementedError("The cluster engine is being built: only --plan works so far.")
