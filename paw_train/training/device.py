"""The device that a run of the local engine learns on."""

from __future__ import annotations

import re

import torch

from paw_gym.internals.naming import did_you_mean


def chosen_device(name: str) -> torch.device:
    """The device that ``model.device`` names."""
    valid = ("auto", "cpu", "cuda")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"Unknown device {name!r}. {did_you_mean(name, valid)}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            "model.device=cuda, but PyTorch sees no CUDA device here; use cpu or auto."
        )
    return torch.device(name)


def memory_of(device: torch.device) -> float | None:
    """GiB of a GPU; ``None`` for a CPU."""
    if device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)
