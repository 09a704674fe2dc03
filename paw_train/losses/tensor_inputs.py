"""The inputs of the pure functions: tensors, numpy arrays or plain lists, checked and named on
failure."""

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

FloatArray: TypeAlias = Tensor | Sequence[Any] | Any
"""Numbers: a tensor, a numpy array, or (nested) lists."""
IdArray: TypeAlias = Tensor | Sequence[Hashable] | Any
"""Identifiers: integers or strings in a list, or an integer tensor or array."""


def as_float(values: FloatArray, name: str, ndim: int) -> Tensor:
    """`values` as a tensor of `ndim` dimensions: float32 and float64 as they are, others in float32."""
    tensor = torch.as_tensor(values)
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float32)
    if tensor.ndim != ndim:
        raise ValueError(
            f"`{name}` must have {ndim} dimension(s), got shape {tuple(tensor.shape)}."
        )
    return tensor


def as_mask(values: FloatArray, name: str, like: Tensor) -> Tensor:
    """`values`, all 0 or 1, as a boolean tensor with the shape and device of `like`."""
    tensor = torch.as_tensor(values, device=like.device)
    if tensor.shape != like.shape:
        raise ValueError(
            f"`{name}` must have shape {tuple(like.shape)}, like the values it masks; "
            f"got {tuple(tensor.shape)}."
        )
    if tensor.dtype == torch.bool:
        return tensor
    mask = tensor != 0
    if not torch.equal(mask.to(tensor.dtype), tensor):
        raise ValueError(f"`{name}` must hold only 0 and 1 (or booleans).")
    return mask


def as_codes(ids: IdArray, name: str, length: int) -> list[int]:
    """The `length` ids renumbered 0, 1, ... in the order in which they first appear."""
    items: list[Hashable] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if len(items) != length:
        raise ValueError(f"`{name}` must have {length} entries, one per row; got {len(items)}.")
    # zero-dimensional tensors and numpy scalars hash by identity or type; their Python value does not
    plain = [item.item() if hasattr(item, "item") else item for item in items]
    codes: dict[Hashable, int] = {}
    return [codes.setdefault(item, len(codes)) for item in plain]


def require_finite(values: Tensor, name: str) -> None:
    """Raise a ValueError that names the first entry of `values` that is NaN or infinite."""
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        raise ValueError(
            f"`{name}` must be finite, but entry {list(index)} is {values[index].item()}. "
            "Find where that number was made; training on it would spoil the whole update."
        )
