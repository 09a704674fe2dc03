"""Gradients of micro-batches summed in float32 under ZeRO-2, as in the local engine and under ZeRO-3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sum_in_float32(engine: Any) -> None:
    """Makes DeepSpeed's ZeRO-2 keep its sums in ``grad_accum_dtype``.

    DeepSpeed 0.19.6 reads the option, but keeps the first micro-batch's gradients in the precision of the
    weights and adds the others to them: in bfloat16, 256 + 1 is 256. With the optimiser in the machine's
    memory (``openrlhf.adam_offload``) its sums are others, and stay as they are.

    Args:
        engine: DeepSpeed's, with its optimiser.
    """
    optimizer = engine.optimizer
    narrow = getattr(optimizer, "get_all_grad_tensors", None)
    if narrow is None:  # ZeRO-3 has its own sums, in the type that was asked for
        return

    def wide(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [gradient.to(dtype) for gradient in narrow(tensors, dtype)]

    optimizer.get_all_grad_tensors = wide
