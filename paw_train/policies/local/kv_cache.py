"""A static key-value cache: fixed rows, columns allocated ahead, tokens written in place.

The library's static cache writes all rows at the same column, so rows of unequal lengths need padding in it,
and its dynamic one copies all of itself for each token. Here each token has a row and a column of its own:
sequences of any lengths lie without holes, and buffers stay where they are while responses are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(frozen=True, slots=True)
class Access:
    """The part of the cache that a forward pass over r rows of t tokens writes and reads."""

    rows: Tensor
    """[r] of the cache"""
    columns: Tensor
    """[r, t] of the tokens"""
    end: int
    """number of columns that are read"""
    seen: slice | None
    """the rows, if they are neighbours; else they are gathered"""
    is_first: bool
    """nothing stands before the tokens, so that they read themselves only"""


class StaticCache(Cache):
    """Keys and values of all layers; for a short convolution, its inputs, of which three or so are read.

    Args:
        multiple: the room is a multiple of so many columns. Above 1, buffers keep their size as long as they
            can: rows that are kept are moved together, and room grows by at least half.
    """

    def __init__(self, layers: int, rows: int, multiple: int = 1) -> None:
        self.rows, self.multiple = rows, multiple
        self.room = 0
        """columns that the buffers have, or get when they are next written to"""
        self.access: Access | None = None
        self.static_layers = [_StaticLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self.static_layers))

    def reserve(self, columns: int) -> None:
        """Makes room for sequences of so many tokens, and a good few more."""
        if columns > self.room and self.multiple > 1:
            wanted = max(columns, self.room + self.room // 2)
            self.room = -(-wanted // self.multiple) * self.multiple
        elif columns > self.room:
            # half-precision products on a CPU read the spare columns too (``attention``): not too many
            self.room = columns + columns // 8 + 64

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """None: a convolution goes on from the columns before its tokens (``update_conv_state``)."""

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Writes [r, dim, t] inputs of a convolution, and returns them after those before them."""
        return self.static_layers[layer_idx].convolve(conv_states, kwargs["conv_kernel_size"] - 1)

    @property
    def bytes(self) -> int:
        """Memory of the buffers."""
        return sum(buffer.nbytes for layer in self.static_layers for buffer in layer.buffers)

    def copy(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """Copies the first ``width`` columns of some rows to others."""
        for layer in self.static_layers:
            for buffer in layer.buffers:
                source, target = (torch.tensor(r, device=buffer.device) for r in (sources, targets))
                buffer[target, :, :width] = buffer[source, :, :width]

    def swap(self, some: Sequence[int], others: Sequence[int], width: int) -> None:
        """Exchanges rows ``some[i]`` and ``others[i]`` over the first ``width`` columns."""
        self.copy([*some, *others], [*others, *some], width)

    def keep(self, rows: Sequence[int], width: int) -> None:
        """Replaces all rows by the first ``width`` columns of the given ones."""
        if self.multiple > 1:
            self.copy(rows, range(len(rows)), width)
            return
        self.rows, self.room = len(rows), 0
        self.reserve(width)
        for layer in self.static_layers:
            layer.buffers = [
                _widened(buffer[torch.tensor(rows, device=buffer.device), :, :width], self.room)
                for buffer in layer.buffers
            ]


class _StaticLayer(DynamicLayer):
    """Buffers [rows, heads, room, dim] of the keys and the values of one layer."""

    def __init__(self, cache: StaticCache) -> None:
        super().__init__()
        self.cache = cache
        self.buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [r, heads, t, dim] keys and values, and returns what their tokens may see."""
        both = (key_states, value_states)
        if not self.buffers:
            self.lazy_initialization(key_states, value_states)
        access = self._write(both)
        if access.is_first:
            return both
        keys, values = (buffer[:, :, : access.end] for buffer in self.buffers)
        if access.seen is not None:
            return keys[access.seen], values[access.seen]
        return keys.index_select(0, access.rows), values.index_select(0, access.rows)

    def convolve(self, inputs: Tensor, before: int) -> Tensor:
        """Writes the inputs of a convolution; [r, dim, before + t]: these, after those before them."""
        access = self._write([inputs[:, None].transpose(2, 3)])
        if access.is_first:
            return inputs  # the layer pads these itself
        columns = access.columns[:, :1] + torch.arange(-before, 0, device=inputs.device)
        past = self.buffers[0][access.rows[:, None], 0, columns.clamp(min=0)]
        past = past * (columns >= 0)[..., None]
        return torch.cat([past.transpose(1, 2), inputs], 2)

    def _write(self, states: Sequence[Tensor]) -> Access:
        """Writes [r, heads, t, dim] each to the columns of its tokens."""
        access = self.cache.access
        assert access is not None
        if not self.buffers:
            self.buffers = [
                x.new_zeros((self.cache.rows, x.shape[1], 0, x.shape[3])) for x in states
            ]
        if self.buffers[0].shape[2] < self.cache.room:
            self.buffers = [_widened(buffer, self.cache.room) for buffer in self.buffers]
        for buffer, new in zip(self.buffers, states, strict=True):
            buffer[access.rows[:, None], :, access.columns] = new.transpose(1, 2)
        return access

    def get_seq_length(self) -> int:
        """Columns before the next update."""
        access = self.cache.access
        return 0 if access is None else access.end - access.columns.shape[1]


def _widened(buffer: Tensor, room: int) -> Tensor:
    """A copy with more columns, zeros: a column that a mask hides must hold finite numbers."""
    wide = buffer.new_zeros((*buffer.shape[:2], room, buffer.shape[3]))
    wide[:, :, : buffer.shape[2]] = buffer
    return wide


def static_cache(model: Any, rows: int, multiple: int = 1) -> StaticCache | None:
    """A cache for a model whose attention takes a mask for each pair of tokens, else ``None``.

    Layers with a sliding window keep everything as well; the mask hides what is too far. Short convolutions
    (LFM2's) keep the inputs of all tokens, so that rows of any lengths go on, and go back. A window that is
    measured in columns (``attention_types`` of GPT-Neo), states, and keys that layers share do not fit.
    """
    config = model.get_decoder().config
    attention = str(getattr(config, "_attn_implementation", ""))
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    fits = (
        (attention.endswith("sdpa") or attention == "eager")
        and kinds <= {"full_attention", "sliding_attention", "conv"}
        and not getattr(model, "_is_stateful", False)
        and not hasattr(config, "attention_types")
        and not getattr(config, "num_kv_shared_layers", None)
    )
    return StaticCache(config.num_hidden_layers, rows, multiple) if fits else None


def window_of(config: Any) -> tuple[int | None, bool]:
    """The tokens that a token sees (``None``: all), and true if each named kind of layer has its own mask."""
    kinds = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None) or None
    if kinds:
        return (size, True) if "sliding_attention" in kinds else (None, False)
    return (size if getattr(config, "use_sliding_window", True) else None), False
