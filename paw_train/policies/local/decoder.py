"""Batched decoding with a key-value cache that outlives a turn.

A ``BatchDecoder`` holds B growing sequences, each from column 0 of its row of the cache on, without holes.
``feed`` appends tokens of any number to each. Where the model's attention is ours, they go through it
as one row without padding, and each attends to its own sequence only. Rows that have ended their response
lie idle behind the others until the next ``feed``; rows whose first contexts are equal share one prefill;
``keep`` drops rows for good. ``branch`` looks at many continuations of each row at once and leaves no trace.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paw_train.policies.local.attention import CachedRows
from paw_train.policies.local.group_decoder import GroupDecoder
from paw_train.policies.local.kv_cache import (
    GrowingLayer,
    growing_cache,
    hides_padding,
    window_of,
)
from paw_train.policies.local.logits import logits_of
from paw_train.policies.local.probes import (
    FIRST,
    SECOND,
    close,
    hidden_of,
    takes_blocks,
    undisturbed,
)
from paw_train.policies.local.stock_decoder import StockDecoder
from paw_train.policies.local.token_tree import TokenTree
from paw_train.settings.rollout import PREFILL_TOKENS

_LOG = logging.getLogger(__name__)
_batches: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_IDLE_SHARE = 1 / 8
"""ended rows, of those computed, beyond which they are moved away: some copies of rows, against
computing them at every token that follows"""


def open_decoder(model: Any, rows: int, prefill_tokens: int = PREFILL_TOKENS) -> Decoder:
    """A decoder of ``rows`` sequences, by the kind of the model's cache (see ``BatchDecoder``)."""
    if takes_batches(model):
        return BatchDecoder(model, rows, prefill_tokens)
    stock = hides_padding(model) and growing_cache(model) is None
    return StockDecoder(model, rows) if stock else GroupDecoder(model, rows)


def takes_batches(model: Any) -> bool:
    """Whether a ``BatchDecoder`` gives each sequence what the model gives it alone."""
    if growing_cache(model) is None:
        return False
    if takes_blocks(model):  # then its attention is ours, and takes our masks
        return True
    inner = model.get_decoder()
    if inner not in _batches:
        _batches[inner] = undisturbed(inner, lambda _: _batched_as_alone(model))
        if not _batches[inner]:
            _LOG.warning(
                "The attention of %s does not take a mask for each pair of tokens; rows of unequal lengths "
                "are decoded one by one.",
                type(model).__name__,
            )
    return _batches[inner]


def _batched_as_alone(model: Any) -> bool:
    decoder = BatchDecoder(model, 2)
    decoder.feed([FIRST, SECOND])
    found = decoder.feed([SECOND[:1], FIRST])
    inner, whole = model.get_decoder(), (FIRST + SECOND[:1], SECOND + FIRST)
    alone = torch.cat([hidden_of(inner, ids)[-1:] for ids in whole])
    return close(found, decoder.logits_of(alone), alone.dtype)


class BatchDecoder:
    """B sequences that grow together.

    Args:
        model: a Hugging Face causal language model whose layers are attention (``growing_cache``).
        rows: B.
        prefill_tokens: most tokens of one forward pass of ``feed`` (a single row may have more): memory,
            not results.
    """

    def __init__(self, model: Any, rows: int, prefill_tokens: int = PREFILL_TOKENS) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.prefill_tokens = prefill_tokens
        self.count = rows
        cache = growing_cache(model)
        if cache is None:
            raise ValueError(f"The layers of {type(model).__name__} are not all attention.")
        self.cache = cache
        self._layers: list[GrowingLayer] = list(cache.layers)  # type: ignore[arg-type]
        self._window = window_of(model.config)
        self._joins = self._window is None and takes_blocks(model)
        self._eager = getattr(model.config, "_attn_implementation", None) == "eager"
        self._order = list(range(rows))
        """the row at each place of the cache; those at work come first"""
        self._working = rows
        self._lengths = [0] * rows
        """tokens at each place"""

    @torch.no_grad()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Appends ``chunks[b]`` to row b (it may be empty, but not the first time).

        Returns:
            [B, V] float32 logits after each row's last new token; without meaning where there is none.
        """
        if len(chunks) != self.count:
            raise ValueError(f"The decoder has {self.count} rows, got {len(chunks)} chunks.")
        self._working = self.count
        if not any(self._lengths):
            return self._feed_first(chunks)
        hidden = self._read([chunks[row] for row in self._order])
        places = torch.tensor(self._places(), device=self.device)
        return self.logits_of(hidden[places])

    @torch.no_grad()
    def feed_some(self, chunks: Mapping[int, Sequence[int]]) -> tuple[list[int], Tensor]:
        """Appends to the given rows, not for the first time; the others are idle until they are fed.

        Args:
            chunks: by row, each of at least one token.

        Returns:
            As ``advance``.
        """
        self._working = self.count
        self._set_idle(chunks)
        working = self._order[: self._working]
        hidden = self._read([chunks[row] for row in working])
        return working, self.logits_of(hidden)

    @torch.no_grad()
    def advance(self, tokens: Mapping[int, int]) -> tuple[list[int], Tensor]:
        """Appends one token to each of the given rows; the others are idle until the next ``feed``.

        Args:
            tokens: by row; only rows that are not idle yet.

        Returns:
            The rows, in the decoder's order, and their [rows, V] float32 logits.
        """
        working = self._order[: self._working]
        if len(tokens) < len(working) * (1 - _IDLE_SHARE):
            self._set_idle(tokens)
            working = self._order[: self._working]
        chunks = [[tokens[row]] if row in tokens else [] for row in working]
        hidden = self._read_padded(0, chunks)
        going = [place for place, row in enumerate(working) if row in tokens]
        if len(going) < len(working):
            hidden = hidden[torch.tensor(going, device=self.device)]
        return [working[place] for place in going], self.logits_of(hidden)

    @torch.no_grad()
    def branch(self, trees: Sequence[TokenTree]) -> list[Tensor]:
        """What follows each row, along every branch of a tree of tokens; nothing of it is kept.

        All branches of a row are computed in one pass: each node sees the row, its ancestors and
        itself. To be called right after ``feed``.

        Args:
            trees: B, what might come after each row.

        Returns:
            [n, H] hidden states of each tree's inner nodes.
        """
        found: dict[int, Tensor] = {}
        start = 0
        while start < self.count:
            rows = self._order[start:]
            share = max(1, self.prefill_tokens // max(1, len(trees[rows[0]].inner)))
            widest = max(len(trees[row].inner) for row in rows[:share])
            rows = rows[: max(1, min(share, self.prefill_tokens // max(1, widest)))]
            for row, hidden in zip(rows, self._peek(start, [trees[r] for r in rows]), strict=True):
                found[row] = hidden[: len(trees[row].inner)]
            start += len(rows)
        return [found[row] for row in range(self.count)]

    def logits_of(self, hidden: Tensor) -> Tensor:
        """[n, V] float32 logits of [n, H] last hidden states."""
        return logits_of(self.model, hidden)

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but the given ones, in the given order; one may be given many times."""
        places = self._places()
        self._take([places[row] for row in rows])
        self.count = self._working = len(rows)
        self._order = list(range(len(rows)))

    def rewind(self, lengths: Mapping[int, int]) -> None:
        """Forgets the ends of some rows.

        Args:
            lengths: by row, how many of its tokens stay.
        """
        places = self._places()
        for row, length in lengths.items():
            self._lengths[places[row]] = length

    def fork(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Replaces all rows by beginnings of the given ones.

        Args:
            rows: of each new row, the row that it continues; one may be given many times.
            lengths: of each new row, how many of that row's tokens it has, at least 1.
        """
        self.keep(rows)
        self._lengths = [min(pair) for pair in zip(self._lengths, lengths, strict=True)]

    # --- what is computed --------------------------------------------------------------------------

    def _feed_first(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Computes each different context once, the longest first, so that padding is short."""
        if not all(chunks):
            raise ValueError("A row's first chunk is empty; it has nothing to answer.")
        different = sorted({tuple(chunk) for chunk in chunks}, key=len, reverse=True)
        place_of = {chunk: i for i, chunk in enumerate(different)}
        places = [place_of[tuple(chunk)] for chunk in chunks]
        self._lengths = [0] * len(different)
        hidden = self._read(different)
        if len(different) == self.count:
            self._order = sorted(range(self.count), key=places.__getitem__)
        else:
            self._take(places)
        return self.logits_of(hidden)[torch.tensor(places, device=self.device)]

    def _read(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Appends to the first places of the cache, some at a time; [places, H] last hidden states."""
        read = self._read_joined if self._joins else self._read_padded
        hidden, start = [], 0
        while start < len(chunks):
            stop = start + 1
            while stop < len(chunks) and self._fits(chunks[start : stop + 1]):
                stop += 1
            hidden.append(read(start, chunks[start:stop]))
            start = stop
        return torch.cat(hidden)

    def _fits(self, chunks: Sequence[Sequence[int]]) -> bool:
        tokens = sum(map(len, chunks)) if self._joins else len(chunks) * _longest(chunks)
        return tokens <= self.prefill_tokens

    def _read_joined(self, first: int, chunks: Sequence[Sequence[int]]) -> Tensor:
        """One forward pass over the tokens of neighbouring places as one row, without padding."""
        if not any(chunks):
            return self._nothing(len(chunks))
        before = self._lengths[first : first + len(chunks)]
        ids = [token for chunk in chunks for token in chunk]
        columns = [
            n + i for n, chunk in zip(before, chunks, strict=True) for i in range(len(chunk))
        ]
        places = [first + i for i, chunk in enumerate(chunks) for _ in chunk]
        position = torch.tensor([columns], device=self.device)
        self._aim(torch.tensor([places], device=self.device), position, slice(None))
        spans = [
            (first + i, n, len(c)) for i, (n, c) in enumerate(zip(before, chunks, strict=True))
        ]
        hidden = self._decode(
            torch.tensor([ids]),
            position,
            # no mask: this one only keeps the model from making its own
            torch.ones((1, 1, 0, 0), dtype=torch.bool, device=self.device),
            blocks=CachedRows.of([span for span in spans if span[2]], self.device),
        )[0]
        ends, at = [], 0
        for chunk in chunks:
            at += len(chunk)
            ends.append(max(0, at - 1))
        self._grow(first, chunks)
        return hidden[torch.tensor(ends, device=self.device)]

    def _read_padded(self, first: int, chunks: Sequence[Sequence[int]]) -> Tensor:
        """One forward pass over neighbouring places, a row each; [r, H] hidden states of their last tokens.

        What padding leaves behind a sequence is not seen, and overwritten by what the sequence goes on with.
        """
        width = _longest(chunks)
        ids = torch.tensor([[*chunk, *[0] * (width - len(chunk))] for chunk in chunks])
        before = torch.tensor(self._lengths[first : first + len(chunks)], device=self.device)
        steps = torch.arange(width, device=self.device)
        position = before[:, None] + steps
        places = torch.arange(first, first + len(chunks), device=self.device)
        end = max(self._lengths[first : first + len(chunks)]) + width
        self._aim(
            places[:, None].expand(-1, width), position, slice(first, first + len(chunks)), end
        )
        column = torch.arange(end, device=self.device)
        if end == width and self._window is None:
            mask = None  # nothing precedes: causal order is enough
        else:
            mask = self._mask(column <= position[..., None], position, column)
        last = torch.tensor([len(chunk) - 1 for chunk in chunks], device=self.device)
        # padding must not stand beyond the model's last position
        hidden = self._decode(ids, before[:, None] + torch.minimum(steps, last[:, None]), mask)
        self._grow(first, chunks)
        return hidden[torch.arange(len(chunks), device=self.device), last.clamp(min=0)]

    def _peek(self, first: int, trees: Sequence[TokenTree]) -> Tensor:
        """[r, N, H] hidden states of the trees' inner nodes, padded; the sequences stay as they are."""
        width = max(1, max(len(tree.inner) for tree in trees))
        lengths = self._lengths[first : first + len(trees)]
        end = max(lengths) + width
        ids = torch.zeros((len(trees), width), dtype=torch.long)
        depth = torch.zeros_like(ids)
        seen = torch.zeros((len(trees), width, end), dtype=torch.bool)
        column = torch.arange(end).repeat(len(trees), 1)
        for i, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            n, nodes = len(tree.inner), slice(length, length + width)
            ids[i, :n], depth[i, :n] = torch.tensor(tree.inner), torch.tensor(tree.depths)
            # a node of the padding sees itself, so that its attention is over something
            seen[i, :, nodes] = torch.eye(width, dtype=torch.bool)
            seen[i, :n, length : length + n] = tree.lineage()
            seen[i, :, :length] = True
            column[i, nodes] = length + depth[i]
        start = torch.tensor(lengths)[:, None]
        place = torch.arange(first, first + len(trees))[:, None].expand(-1, width)
        columns = start + torch.arange(width)
        self._aim(
            place.to(self.device),
            columns.to(self.device),
            slice(first, first + len(trees)),
            end,
        )
        position = (start + depth).to(self.device)
        mask = self._mask(seen.to(self.device), position, column.to(self.device))
        return self._decode(ids, position, mask)

    def _decode(self, ids: Tensor, position: Tensor, mask: Any, **keywords: Any) -> Tensor:
        hidden: Tensor = self.model.get_decoder()(
            input_ids=ids.to(self.device),
            attention_mask=mask,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
            **keywords,
        ).last_hidden_state
        return hidden

    def _mask(self, seen: Tensor, position: Tensor, column: Tensor) -> Any:
        """The attention mask of a pass, by kind where layers differ.

        Args:
            seen: [r, t, L] bool, by order alone.
            position: [r, t] of the tokens.
            column: [L] or [r, L], position of what each column holds.
        """
        if self._window is None:
            return self._as_mask(seen)
        near = position[..., None] - column.expand(len(seen), -1)[:, None, :] < self._window.size
        if not self._window.mixed:
            return self._as_mask(seen & near)
        return {
            "full_attention": self._as_mask(seen),
            "sliding_attention": self._as_mask(seen & near),
        }

    def _as_mask(self, seen: Tensor) -> Tensor:
        """[r, 1, t, L]"""
        seen = seen[:, None]
        if not self._eager:
            return seen
        least = torch.finfo(self.model.dtype).min
        return torch.zeros_like(seen, dtype=self.model.dtype).masked_fill_(~seen, least)

    def _nothing(self, rows: int) -> Tensor:
        return torch.zeros(
            (rows, self.model.config.hidden_size), dtype=self.model.dtype, device=self.device
        )

    # --- where it lies -----------------------------------------------------------------------------

    def _aim(self, places: Tensor, columns: Tensor, seen: slice, end: int | None = None) -> None:
        """The next pass writes to these places and columns [r, t], and sees ``end`` columns of ``seen``."""
        end = int(columns.max()) + 1 if end is None else end
        for layer in self._layers:
            layer.aim(places, columns, seen, end, len(self._lengths))

    def _grow(self, first: int, chunks: Sequence[Sequence[int]]) -> None:
        for place, chunk in enumerate(chunks, first):
            self._lengths[place] += len(chunk)

    def _set_idle(self, going: Mapping[int, Any]) -> None:
        """Moves the rows that go on to the front of the cache, by swaps."""
        count = len(going)
        front = [i for i in range(count) if self._order[i] not in going]
        back = [i for i in range(count, self._working) if self._order[i] in going]
        self._working = count
        if not front:
            return
        for a, b in zip(front, back, strict=True):
            for values in (self._order, self._lengths):
                values[a], values[b] = values[b], values[a]
        a_index = torch.tensor(front, device=self.device)
        b_index = torch.tensor(back, device=self.device)
        for layer in self._layers:
            layer.swap(a_index, b_index, max(self._lengths))

    def _take(self, places: Sequence[int]) -> None:
        """The cache with row b from ``places[b]``."""
        self._lengths = [self._lengths[place] for place in places]
        index = torch.tensor(list(places), dtype=torch.long, device=self.device)
        for layer in self._layers:
            layer.select(index, max(self._lengths))

    def _places(self) -> list[int]:
        """[B] where in the cache each row is."""
        return sorted(range(self.count), key=self._order.__getitem__)


def _longest(chunks: Sequence[Sequence[int]]) -> int:
    return max(1, max(len(chunk) for chunk in chunks))


Decoder = BatchDecoder | StockDecoder | GroupDecoder
"""whatever holds growing sequences; all but ``BatchDecoder`` neither ``fork`` nor rest rows"""
