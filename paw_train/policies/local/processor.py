"""Types of numbers that the hardware is fast at."""

from __future__ import annotations

import logging
from typing import Any

import torch

from paw_gym.naming import require_choice

_LOG = logging.getLogger(__name__)


def bfloat16_is_native() -> bool:
    """Whether this processor multiplies in bfloat16 (AVX-512 with its extension, AMX, or SVE)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def weights_type(wanted: str, device: torch.device) -> torch.dtype:
    """The type of a model's weights.

    Args:
        wanted: ``float32``, ``bfloat16``, or ``auto``: bfloat16 where the device multiplies in it.
        device: of the model.

    Raises:
        ValueError: another name; gives the nearest.
    """
    require_choice("model.dtype", wanted, ("float32", "bfloat16", "auto"))
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    native = bfloat16_is_native() if device.type == "cpu" else torch.cuda.is_bf16_supported(False)
    return torch.bfloat16 if native else torch.float32


def warn_of_slow_type(model: Any) -> None:
    """Logs a warning for a bfloat16 model on a processor that has no instructions for this type.

    Its matrix products then take some 60 times as long as in float32 (AVX2, one core: 1.2 against
    74 GFLOP/s).
    """
    weight = next(model.parameters())
    if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and not bfloat16_is_native():
        _LOG.warning(
            "This processor has no instructions for bfloat16; the model will run tens of times slower than "
            "in float32. Set model.dtype=float32."
        )
