"""Test only: removing and restoring padding in plain torch, as flash-attn's functions of these names."""

from __future__ import annotations

import torch
from einops import rearrange  # noqa: F401  (OpenRLHF imports it from here)
from torch import Tensor


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


def unpad_input(
    values: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    used = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = used.sum(-1, dtype=torch.int32)
    indices = used.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    kept = values.flatten(0, 1)[indices]
    return kept, indices, ends, int(lengths.max()), attention_mask.sum(-1, dtype=torch.int32)


def pad_input(values: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    result = values.new_zeros(batch * seqlen, *values.shape[1:])
    return result.index_copy(0, indices, values).unflatten(0, (batch, seqlen))
