"""Grouped-query attention that does not copy its keys and values.

The stock path repeats each key-value head for every query head it serves. While sampling, the cache
is most of what is read, so the repeated copy is most of the time. Here the query heads of a group
become rows of one query: the same numbers, the cache read once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME, REPEATED = "paw_grouped_sdpa", "paw_repeated_sdpa"
_LONGEST_QUERY = 256
"""query tokens up to which folding pays; a training pass has more, and no cache"""
_FEW_QUERIES = 192
_MANY_KEYS = 2**17
"""rows of a query up to which, and numbers in the keys from which, two products are faster than the fused
kernel in bfloat16 on a CPU"""
_LARGEST_SCORE = 64.0
"""up to which rounding a score to bfloat16 changes it by at most 1/8; some models' are in the hundreds"""


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention for Hugging Face's attention interface; gives [B, t, H, D], and no weights.

    Queries are [B, H, t, D], keys and values [B, K, L, D] with H a multiple of K; the mask is [B, 1, t, L],
    or ``None`` for plain causal attention.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    rows = groups * length
    products = mask is not None and rows <= _FEW_QUERIES and _is_read_slowly(key, mask)
    if mask is None or length > _LONGEST_QUERY or (groups == 1 and not products):
        output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **kwargs)[0]
        return output, None
    folded = query.reshape(batch, key.shape[1], rows, width)
    mask = mask[..., : key.shape[2]]
    if length > 1:
        mask = mask.repeat(1, 1, groups, 1)
    kernel = _two_products if products else _fused
    result = kernel(folded, key, value, mask, kwargs.get("scaling") or width**-0.5)
    # values may be narrower than keys
    return result.reshape(batch, heads, length, value.shape[-1]).transpose(1, 2), None


def repeated_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """As ``grouped_attention``, for float32 on CUDA, whose fused kernels take no groups.

    Plain causal attention would be computed without them, and hold all scores at once. Here each query head
    gets a copy of its keys and values; with a mask, ``grouped_attention`` takes over.
    """
    groups = query.shape[1] // key.shape[1]
    if mask is not None or groups == 1:
        return grouped_attention(module, query, key, value, mask, **kwargs)
    result: Tensor = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(groups, 1),
        value.repeat_interleave(groups, 1),
        is_causal=query.shape[2] > 1,
        scale=kwargs.get("scaling"),
    )
    return result.transpose(1, 2), None


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    result: Tensor = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask.expand(-1, -1, query.shape[2], -1), scale=scale
    )
    return result


def _is_read_slowly(key: Tensor, mask: Tensor) -> bool:
    """True if the fused kernel is slower than two products: few new tokens over a cache in bfloat16."""
    narrow = key.dtype == torch.bfloat16 and key.device.type == "cpu" and not key.requires_grad
    return narrow and mask.dtype == torch.bool and key.numel() >= _MANY_KEYS


def _two_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of [B, K, q, D] queries with the softmax in float32; the mask is [B, 1, q or 1, L].

    A product of a slice would copy it first, which costs more than the product. So the products go over
    the whole buffers that begin with ``key`` and ``value``, and the rest has no weight.
    """
    keys, values = _whole(key), _whole(value)
    if keys.shape[2] != values.shape[2]:
        return _fused(query, key, value, mask, scale)
    scores = torch.matmul(query, keys.transpose(-1, -2)).float().mul_(scale)
    low, high = scores.aminmax()
    if max(-low, high) > _LARGEST_SCORE:
        return _fused(query, key, value, mask, scale)
    shown = torch.nn.functional.pad(mask, (0, keys.shape[2] - mask.shape[3]))
    # not -inf: a token that sees nothing must still give a number, as a mask may hide it from others
    weights = scores.masked_fill_(~shown, torch.finfo(torch.float32).min).softmax(-1)
    return torch.matmul(weights.to(value.dtype), values)


def _whole(part: Tensor) -> Tensor:
    """The [B, K, room, D] buffer of which a [B, K, L, D] tensor is the first L columns."""
    batch, heads, length, width = part.shape
    room = part.stride(1) // width
    whole_rows = part.stride() == (heads * room * width, room * width, width, 1)
    if room < length or not whole_rows or part.storage_offset() % (room * width):
        return part
    return part.as_strided((batch, heads, room, width), part.stride())


def use_grouped_attention(model: Any) -> None:
    """Switches a model, once it is on its device, from stock ``sdpa`` attention to this; other kinds stay."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if getattr(model.config, "_attn_implementation", None) not in ("sdpa", NAME, REPEATED):
        return
    weight = next(model.parameters())
    name, form = NAME, grouped_attention
    if weight.device.type == "cuda" and weight.dtype == torch.float32:
        name, form = REPEATED, repeated_attention
    AttentionInterface.register(name, form)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)
