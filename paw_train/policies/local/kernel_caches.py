"""Bounds for oneDNN's caches of compiled kernels, which grow with each new shape."""

from __future__ import annotations

import os

import torch

_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""of oneDNN itself and of PyTorch's layer above it; both are read at the first product"""
_KERNELS = 32


def bound_kernel_caches(device: torch.device, dtype: torch.dtype) -> None:
    """Lets the process keep few compiled kernels, where products in half precision are oneDNN's.

    By default it keeps a thousand and more, about 170 kB each, and rollouts meet hundreds of shapes: fifteen
    updates of SmolLM2-135M grew from 8 to 14 GB. With these bounds they stay at 8 GB, in the same time
    (docs/benchmarks.md). A value that the environment has already is left as it is.

    Args:
        device: of the model.
        dtype: of its weights.
    """
    if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        for name in _VARIABLES:
            os.environ.setdefault(name, str(_KERNELS))
