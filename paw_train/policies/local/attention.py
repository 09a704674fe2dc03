"""Grouped-query attention that does not copy its keys and values.

The stock path repeats each key-value head for every query head it serves. While sampling, the cache
is most of what is read, so the repeated copy is most of the time. Here the query heads of a group
become rows of one query: the same numbers, the cache read once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "paw_grouped_sdpa"
_LONGEST_QUERY = 256
"""query tokens up to which folding pays; a training pass has more, and no cache"""


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention for Hugging Face's attention interface.

    Args:
        module: the attention layer.
        query: [B, H, t, D].
        key: [B, K, L, D] with H a multiple of K.
        value: [B, K, L, D].
        attention_mask: [B, 1, t, L], or ``None`` for plain causal attention.
        kwargs: ``scaling`` and what else the stock function takes; ``blocks`` (``AttentionBlocks``) of a
            batch of joined rows, in place of a mask.

    Returns:
        [B, t, H, D], and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if (blocks := kwargs.pop("blocks", None)) is not None:
        return blocks.attend(module, query, key, value, **kwargs), None
    if attention_mask is None or groups == 1 or length > _LONGEST_QUERY:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    folded = query.reshape(batch, key.shape[1], groups * length, width)
    mask = attention_mask[..., : key.shape[2]].repeat(1, 1, groups, 1)
    result = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=mask, scale=kwargs.get("scaling")
    )
    return result.reshape(batch, heads, length, width).transpose(1, 2), None


def takes_blocks(model: Any) -> bool:
    """Whether the model's attention is ``grouped_attention`` and gets the model's own keywords."""
    # by the convention of Transformers, models of this flag hand all keywords down to their attention
    passes = bool(getattr(model.get_decoder(), "_supports_attention_backend", False))
    return passes and getattr(model.config, "_attn_implementation", None) == NAME


def use_grouped_attention(model: Any) -> None:
    """Switches a model from the stock ``sdpa`` attention to this one; other kinds stay."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
