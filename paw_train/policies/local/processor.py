"""Which types of numbers the processor is fast at."""

from __future__ import annotations

import logging
from typing import Any

import torch

_LOG = logging.getLogger(__name__)


def bfloat16_is_native() -> bool:
    """Whether this processor multiplies in bfloat16 (AVX-512 with its extension, AMX, or SVE)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
