"""A key-value cache that outlives a turn: rows can be idle, swap places, be copied and be dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


def _room(columns: int) -> int:
    """Columns of a buffer for so many: a decode step reads the spare ones too (``attention``)."""
    return columns + columns // 8 + 64


class GrowingLayer(DynamicLayer):
    """A cache layer that writes in place into a buffer with room to spare.

    The stock layer copies the whole cache for every token; for a small model over long dialogues
    that copy costs more than the model. Each token is written to a row and column of its own (``aim``), so
    that sequences of any lengths stand in it without holes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[Tensor] = []
        self._rows = self._columns = torch.zeros((0, 0), dtype=torch.long)
        self._seen = slice(None)
        self._end = 0
        self._total = 0

    def aim(self, rows: Tensor, columns: Tensor, seen: slice, end: int, total: int) -> None:
        """Says where the next update belongs.

        Args:
            rows: [r, t] of its tokens.
            columns: [r, t] of its tokens.
            seen: the rows that it sees.
            end: of these, how many columns.
            total: rows of the cache.
        """
        self._rows, self._columns, self._seen = rows, columns, seen
        self._end, self._total = end, total

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [r, heads, t, dim] keys and values where they belong and returns all that is seen."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        views = []
        for i, new in enumerate((key_states, value_states)):
            self._make_room(i, new)
            self._buffers[i][self._rows, :, self._columns] = new.transpose(1, 2)
            views.append(self._buffers[i][self._seen, :, : self._end])
        self.keys, self.values = views
        return self.keys, self.values

    def _make_room(self, i: int, like: Tensor) -> None:
        """Zeros, not whatever lay in memory: a column that a mask hides must hold finite numbers."""
        if len(self._buffers) > i and self._buffers[i].shape[-2] >= self._end:
            return
        room = _room(self._end)
        fresh = like.new_zeros((self._total, like.shape[1], room, like.shape[-1]))
        if len(self._buffers) > i:
            old = self._buffers[i]
            fresh[:, :, : old.shape[-2]] = old
        self._buffers[i : i + 1] = [fresh]

    def get_seq_length(self) -> int:
        """Columns before the next update."""
        return max(0, self._end - self._columns.shape[-1])

    def swap(self, a: Tensor, b: Tensor, width: int) -> None:
        """Exchanges rows ``a[i]`` and ``b[i]`` over the first ``width`` columns."""
        for buffer in self._buffers:
            kept = buffer[a, :, :width]
            buffer[a, :, :width] = buffer[b, :, :width]
            buffer[b, :, :width] = kept

    def select(self, rows: Tensor, width: int) -> None:
        """Keeps the first ``width`` columns of the given rows [R] (also repeated ones)."""
        for i, buffer in enumerate(self._buffers):
            fresh = buffer.new_zeros((len(rows), buffer.shape[1], _room(width), buffer.shape[3]))
            fresh[:, :, :width] = buffer[rows, :, :width]
            self._buffers[i] = fresh


def growing_cache(model: Any) -> Cache | None:
    """A cache of growing layers, or ``None`` for a model whose layers keep something else.

    Attention must take a mask of its own for each pair of tokens, as SDPA and the eager one do. Layers
    with a sliding window keep everything as well; the attention mask hides what is too far.
    """
    config = model.config
    attention = str(getattr(config, "_attn_implementation", ""))
    if not (attention.endswith("sdpa") or attention == "eager"):
        return None
    if not hides_padding(model) or getattr(config, "num_kv_shared_layers", None):
        return None
    return Cache(layers=[GrowingLayer() for _ in range(config.num_hidden_layers)])


def hides_padding(model: Any) -> bool:
    """Whether an attention mask keeps padding in the cache from having any effect.

    Not in layers with a state, nor where a window is measured in columns of the cache (``attention_types`` of
    GPT-Neo).
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    other = getattr(model, "_is_stateful", False) or hasattr(config, "attention_types")
    return kinds <= {"full_attention", "sliding_attention"} and not other


@dataclass(frozen=True, slots=True)
class Window:
    """The sliding window of a model's attention."""

    size: int
    """tokens that a token sees, itself included"""
    mixed: bool
    """whether layers are of named kinds, so that the model takes a mask for each kind"""


def window_of(config: Any) -> Window | None:
    """The model's sliding window, or ``None`` when every layer sees everything."""
    kinds = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None)
    if kinds:
        return Window(int(size), True) if "sliding_attention" in kinds and size else None
    return (
        Window(int(size), False) if size and getattr(config, "use_sliding_window", True) else None
    )
