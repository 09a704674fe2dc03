"""Grouped-query attention that does not copy its keys and values.

The stock path repeats each key-value head for every query head it serves. While sampling, the cache
is most of what is read, so the repeated copy is most of the time. Here the query heads of a group
become rows of one query: the same numbers, the cache read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        kwargs: ``scaling`` and what else the stock function takes; ``blocks`` (``AttentionBlocks`` or
            ``CachedRows``) of sequences that are joined into one row, in place of a mask.

    Returns:
        [B, t, H, D], and no weights.
    """
    blocks = kwargs.pop("blocks", None)
    attend = _attend if blocks is None else blocks.attend
    result = attend(module, query, key, value, attention_mask, **kwargs)
    return result, None


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if mask is None or groups == 1 or length > _LONGEST_QUERY:
        output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **kwargs)[0]
        return output
    folded = query.reshape(batch, key.shape[1], groups * length, width)
    mask = mask[..., : key.shape[2]]
    mask = mask.expand(-1, -1, groups, -1) if length == 1 else mask.repeat(1, 1, groups, 1)
    result = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=mask, scale=kwargs.get("scaling")
    )
    return result.reshape(batch, heads, length, width).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class CachedRows:
    """New tokens of several rows of a key-value cache, joined into one row."""

    spans: list[tuple[int, int, int]]
    """of each row: its place in the cache, its tokens with the new ones, and how many are new"""
    masks: list[Tensor | None]
    """[1, 1, new, all] bool of each row; ``None``: nothing precedes the new ones"""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]], device: torch.device) -> CachedRows:
        """Of rows in the order in which they are joined: (place, tokens before, new tokens > 0)."""
        masks: list[Tensor | None] = []
        for _, before, new in rows:
            last = torch.arange(before, before + new, device=device)[:, None]
            columns = torch.arange(before + new, device=device)
            masks.append((columns <= last)[None, None] if before else None)
        return cls([(place, before + new, new) for place, before, new in rows], masks)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Tensor:
        """Each new token sees its own row up to itself.

        Args:
            module: the attention layer.
            query: [1, H, N, D] of all rows' new tokens.
            key: [R, K, L, D] of the cache.
            value: [R, K, L, D].
            mask: not used.
            kwargs: ``scaling`` and what else the stock function takes.

        Returns:
            [1, N, H, D]
        """
        found, start = [], 0
        for (place, end, new), seen in zip(self.spans, self.masks, strict=True):
            row = slice(place, place + 1)
            k, v = key[row, :, :end], value[row, :, :end]
            found.append(_attend(module, query[:, :, start : start + new], k, v, seen, **kwargs))
            start += new
        return torch.cat(found, 1)


def use_grouped_attention(model: Any) -> None:
    """Switches a model from the stock ``sdpa`` attention to this one; other kinds stay."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
