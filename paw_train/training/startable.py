"""What each engine asks before a run begins, without beginning it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paw_gym.naming import did_you_mean
from paw_train.policies.local.loading import find_model
from paw_train.settings import Settings
from paw_train.training.fit import gpu_memory, machine_memory, require_fit
from paw_train.training.preparation import prepared


def startable(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as the run will use them; nothing is written.

    Args:
        settings: of either engine, as the user gave them.
        report: gets a sentence about each thing that the run goes without.

    Raises:
        ValueError: something that the settings name is not there, cannot be done by the engine, or does not
            fit the machine.
        FileNotFoundError: nor data that the environment needs.
        ImportError: nor a package.
    """
    return (_on_cluster if settings.engine == "openrlhf" else _here)(settings, report)


def _here(settings: Settings, report: Callable[[str], None]) -> Settings:
    device = chosen_device(settings.model.device)
    settings = prepared(settings, report)
    _require_model(settings)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / 2**30
        require_fit(settings, float(memory), machine_memory())
    return settings


def _on_cluster(settings: Settings, report: Callable[[str], None]) -> Settings:
    from paw_train.training.openrlhf.launch import require_openrlhf
    from paw_train.training.openrlhf.mapping import require_possible

    require_possible(settings)
    require_openrlhf()
    settings = prepared(settings, report)
    _require_model(settings)
    require_fit(settings, gpu_memory(settings.openrlhf.gpu), possible=require_possible)
    return settings


def _require_model(settings: Settings) -> None:
    if settings.model.path is not None:
        find_model(settings.model.path)


def chosen_device(name: str) -> torch.device:
    """The device that ``model.device`` names.

    Raises:
        ValueError: there is none of this name, or none here.
    """
    valid = ("auto", "cpu", "cuda")
    if name.split(":")[0] not in valid:
        raise ValueError(f"Unknown device {name!r}. {did_you_mean(name, valid)}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            "model.device=cuda, but PyTorch sees no CUDA device here; use cpu or auto."
        )
    return torch.device(name)
