"""Batched decoding with the cache that a model brings along: flash attention, keys shared by layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from paw_train.policies.local.logits import logits_of
from paw_train.policies.local.whole_feed import WholeFeed


class StockDecoder(WholeFeed):
    """B sequences that grow together in columns of their own.

    Shorter chunks leave holes in the cache, which the attention mask hides and position ids skip. Such a
    cache cannot forget, so rows do not rest, and nothing can ``fork`` or ``branch``. For models whose layers
    are attention (``hides_padding``).

    Args:
        model: a Hugging Face causal language model.
        rows: B.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.count = rows
        self.cache = DynamicCache(config=model.config)
        self._mask = torch.zeros((rows, 0), dtype=torch.long, device=self.device)

    @torch.no_grad()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """As ``BatchDecoder.feed``."""
        if len(chunks) != self.count:
            raise ValueError(f"The decoder has {self.count} rows, got {len(chunks)} chunks.")
        width = max(1, max(len(chunk) for chunk in chunks))
        ids = torch.tensor([[*chunk, *[0] * (width - len(chunk))] for chunk in chunks])
        sizes = torch.tensor([len(chunk) for chunk in chunks], device=self.device)
        steps = torch.arange(width, device=self.device)
        last = (sizes - 1).clamp(min=0)
        position = self._mask.sum(1)[:, None] + torch.minimum(steps, last[:, None])
        self._mask = torch.cat([self._mask, (steps < sizes[:, None]).long()], 1)
        hidden = self.model.get_decoder()(
            input_ids=ids.to(self.device),
            attention_mask=self._mask,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return logits_of(self.model, hidden[torch.arange(self.count, device=self.device), last])

    def keep(self, rows: Sequence[int]) -> None:
        """As ``BatchDecoder.keep``."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.device)
        self.count = len(index)
        self._mask = self._mask[index]
        self.cache.batch_select_indices(index)
