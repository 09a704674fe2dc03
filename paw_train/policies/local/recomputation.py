"""Activations computed again in the backward pass (gradient checkpointing; Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def enable_recomputation(model: Any) -> None:
    """Lets the decoder layers of a Hugging Face model keep their inputs alone for the backward pass."""
    # the name changed in transformers 5
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        if hasattr(model, name):
            getattr(model, name)({"use_reentrant": False})
            return


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Activates recomputation while dropout stays off.

    A layer recomputes only while its own ``training`` flag is set; the modules inside it keep theirs,
    so dropout stays off. Without a gradient to compute, nothing is recomputed.
    """
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    flags = [layer.training for layer in layers]
    for layer in layers:
        layer.training = torch.is_grad_enabled()
    try:
        yield
    finally:
        for layer, flag in zip(layers, flags, strict=True):
            layer.training = flag
