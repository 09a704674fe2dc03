"""A key-value cache that outlives a turn: rows can be idle, swap places, be copied and be dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """A cache layer that writes in place into a buffer with room to spare.

    The stock layer copies the whole cache for every token; for a small model over long dialogues
    that copy costs more than the model. Writing goes to a block of rows (``aim``), and the other
    rows keep what they have.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[Tensor] = []
        self._rows = slice(None)
        self._start = 0
        self._total = 0

    def aim(self, rows: slice, start: int, total: int) -> None:
        """The next update is of these rows, from this column on; the cache has ``total`` rows."""
        self._rows, self._start, self._total = rows, start, total

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [r, heads, t, dim] keys and values of the aimed rows and returns all they have."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._start + key_states.shape[-2]
        views = []
        for i, new in enumerate((key_states, value_states)):
            self._make_room(i, new, end)
            block = self._buffers[i][self._rows]
            block[:, :, self._start : end] = new
            views.append(block[:, :, :end])
        self.keys, self.values = views
        return self.keys, self.values

    def _make_room(self, i: int, like: Tensor, end: int) -> None:
        """Zeros, not whatever lay in memory: a column a resting row skips must hold finite numbers."""
        if len(self._buffers) > i and self._buffers[i].shape[-2] >= end:
            return
        room = like.new_zeros((self._total, like.shape[1], end + end // 2 + 64, like.shape[-1]))
        if len(self._buffers) > i:
            old = self._buffers[i]
            room[:, :, : old.shape[-2]] = old
        self._buffers[i : i + 1] = [room]

    def get_seq_length(self) -> int:
        """Columns before the next update."""
        return self._start

    def swap(self, a: Tensor, b: Tensor, width: int) -> None:
        """Exchanges rows ``a[i]`` and ``b[i]`` over the first ``width`` columns."""
        for buffer in self._buffers:
            kept = buffer[a, :, :width]
            buffer[a, :, :width] = buffer[b, :, :width]
            buffer[b, :, :width] = kept

    def select(self, rows: Tensor, columns: Tensor) -> None:
        """Keeps the given rows [R] (also repeated ones) and, of each, the given columns [R, L]."""
        end = columns.shape[1]
        room = end + end // 4 + 64
        for i, buffer in enumerate(self._buffers):
            fresh = buffer.new_zeros((len(rows), buffer.shape[1], room, buffer.shape[3]))
            index = columns[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
            torch.gather(buffer[rows], 2, index, out=fresh[:, :, :end])
            self._buffers[i] = fresh


def growing_cache(model: Any) -> Cache | None:
    """A cache of growing layers, or ``None`` for a model whose layers keep something else.

    Layers with a sliding window keep everything as well; the attention mask hides what is too far.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        return None
    if getattr(config, "num_kv_shared_layers", 0):
        return None
    return Cache(layers=[GrowingLayer() for _ in range(config.num_hidden_layers)])


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
