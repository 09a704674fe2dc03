"""Batched decoding with a key-value cache that outlives a turn.

A decoder holds growing sequences, its rows. ``feed`` appends tokens to some of them and gives what follows;
the others are idle. ``BatchDecoder`` is for models whose layers are attention, with a static cache
(``kv_cache``); ``PlainDecoder`` (``fallback``) is for all others, with the cache that a model brings along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from paw_train.policies.local.fallback import (
    FIRST,
    SECOND,
    PlainDecoder,
    close,
    hidden_of,
    undisturbed,
)
from paw_train.policies.local.kv_cache import Access, StaticCache, static_cache, window_of
from paw_train.policies.local.sampling import BUCKET, EVERY, TokenLoop, logits_of
from paw_train.rollouts.policy import Sampling
from paw_train.rollouts.tokens import batches_alike
from paw_train.settings.rollout import PREFILL_TOKENS

Advance = Callable[[Sequence[int]], dict[int, list[tuple[int, float]]]]
"""takes the rows that go on, and gives by row the next tokens and their log-probabilities"""
_LOG = logging.getLogger(__name__)
_batches: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_fixed: WeakKeyDictionary[Any, _FixedBuffers] = WeakKeyDictionary()
_IDLE_SHARE = 1 / 8
"""share of idle rows among the first of the cache above which they are moved away: that copies some rows,
and saves computing them at every token that follows"""
_PADDING_SHARE = 1 / 8
_FEW_TOKENS = 128
"""padding of a pass, as a share of its tokens and in tokens, up to which it is cheaper than another pass"""
_FEWEST_LOOPED = 8
"""fewest rows that are worth a graph of their own"""


def open_decoder(model: Any, rows: int) -> Decoder:
    """A decoder of ``rows`` sequences, by the kind of the model's cache."""
    if takes_batches(model):
        on_gpu = next(model.parameters()).device.type == "cuda"  # where a launch costs time
        return BatchDecoder(model, rows, fixed=on_gpu)
    return PlainDecoder(model, rows)


def takes_batches(model: Any) -> bool:
    """True if a ``BatchDecoder`` gives each sequence what the model gives it alone."""
    if static_cache(model, 1) is None:
        return False
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
    decoder.feed({0: FIRST, 1: SECOND})
    found = decoder.feed({0: SECOND[:1], 1: FIRST})
    inner, whole = model.get_decoder(), (FIRST + SECOND[:1], SECOND + FIRST)
    alone = torch.cat([hidden_of(inner, ids)[-1:] for ids in whole])
    return close(found, logits_of(model, alone), alone.dtype)


class BatchDecoder:
    """Sequences that grow in one static cache.

    Args:
        model: a Hugging Face causal language model that a ``static_cache`` fits.
        prefill_tokens: most tokens of one forward pass (one row may have more); affects memory, not results.
        fixed: the form for a GPU, where a launch costs more than padding: buffers outlive the decoder and are
            used by the next one, chunks of all lengths are read in one pass, and tokens are sampled by a
            ``TokenLoop`` over the buffers.
    """

    def __init__(
        self, model: Any, rows: int, prefill_tokens: int = PREFILL_TOKENS, fixed: bool = False
    ) -> None:
        self._buffers = _fixed_buffers(model, rows, self) if fixed else None
        cache = self._buffers.cache if self._buffers else static_cache(model, rows)
        if cache is None:
            raise ValueError(f"The layers of {type(model).__name__} are not all attention.")
        self.model, self.cache, self.count = model, cache, rows
        self.device = next(model.parameters()).device
        self.prefill_tokens = prefill_tokens
        config = model.get_decoder().config  # of the text, if the model's own is composite
        self._window, self._mixed = window_of(config)
        self._positions = getattr(config, "max_position_embeddings", None)
        self._convolves = "conv" in (getattr(config, "layer_types", None) or ())
        self._eager = getattr(config, "_attn_implementation", None) == "eager"
        self._lengths = [0] * rows
        """tokens of each row"""
        self._place = list(range(rows))
        """each row's place in the cache"""
        self._row = list(range(rows))
        """the row at each place"""

    @property
    def fixed(self) -> bool:
        """True in the form for a GPU."""
        return self._buffers is not None

    @torch.no_grad()
    def feed(self, chunks: Mapping[int, Sequence[int]]) -> Tensor:
        """Appends tokens (at least one) to rows; those that begin with equal chunks share one computation.

        Gives [n, V] float32 logits after each row's last token, in the order of ``chunks``.
        """
        if not all(chunks.values()):
            raise ValueError("A row is given no tokens; there is nothing to answer.")
        one_each = all(len(ids) == 1 and self._lengths[row] for row, ids in chunks.items())
        hidden = self._step(chunks) if one_each else self._prefill(chunks)
        return logits_of(self.model, hidden)

    def rewind(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Forgets what follows the first ``lengths`` tokens of some rows; says how many stayed (here all)."""
        for row, length in lengths.items():
            self._lengths[row] = length
        return dict(lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but the given ones, in the given order."""
        self._lengths = [self._lengths[row] for row in rows]
        self.cache.keep([self._place[row] for row in rows], max(self._lengths))
        self.count = len(rows)
        self._place, self._row = list(range(self.count)), list(range(self.count))

    @torch.no_grad()
    def sample(
        self, contexts: Mapping[int, Sequence[int]], sampling: Sampling, noise: Tensor
    ) -> Advance:
        """Feeds rows their contexts, for responses that are sampled by a ``TokenLoop``.

        The ``Advance`` may give tokens beyond the end of a response.

        Args:
            contexts: by row, at least one token each.
            sampling: of every token.
            noise: [n, at most max_tokens] in [0, 1), a line for each of ``contexts``.
        """
        assert self._buffers is not None
        logits = self.feed(contexts)
        size = self._buffers.loop_rows(len(contexts))
        if any(self._place[row] >= size for row in contexts):
            self._move_to_front(contexts)
        self.cache.reserve(max(self._lengths) + sampling.max_tokens + EVERY)
        loop = self._buffers.loop(size, sampling, self.device)
        lengths = [self._lengths[row] for row in self._row[:size]]
        lengths += [0] * (size - len(lengths))
        places = [self._place[row] for row in contexts]
        loop.begin(logits, places, lengths, noise, self.cache.room)

        @torch.no_grad()
        def advance(rows: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
            at, steps = [self._place[row] for row in rows], loop.steps
            end = max(self._lengths[row] for row in rows) + steps
            ids, logprobs = loop.advance(self._one_token, at, end)
            for row in rows:
                self._lengths[row] += steps
            return {
                row: [(int(token), p) for token, p in zip(ids[place], logprobs[place], strict=True)]
                for row, place in zip(rows, at, strict=True)
            }

        return advance

    def _one_token(self, ids: Tensor, columns: Tensor, end: int) -> Tensor:
        """[R, V] logits after one token of each of the first R rows of the cache."""
        rows, columns = len(ids), columns[:, None]
        self.cache.access = Access(
            torch.arange(rows, device=self.device), columns, end, slice(0, rows), is_first=False
        )
        column = torch.arange(end, device=self.device)
        mask = self._mask((column <= columns)[:, None], columns, column)
        # what idle rows and those beyond their end compute must lie within the model's positions, too
        position = columns.clamp(max=self._positions - 1) if self._positions else columns
        return logits_of(self.model, self._hidden(ids[:, None], mask, position)[:, 0])

    def _step(self, chunks: Mapping[int, Sequence[int]]) -> Tensor:
        """[n, H] hidden states of one token a row, by one pass over the first places of the cache."""
        span = 1 + max(self._place[row] for row in chunks)
        if len(chunks) < span * (1 - _IDLE_SHARE):
            self._move_to_front(chunks)
            span = len(chunks)
        rows = self._row[:span]
        hidden = self._append(rows, [chunks.get(row, ()) for row in rows])
        places = [self._place[row] for row in chunks]
        return hidden[torch.tensor(places, device=self.device)]

    def _move_to_front(self, rows: Mapping[int, Any]) -> None:
        """Exchanges idle rows among the first of the cache with the given rows after them."""
        front = [place for place in range(len(rows)) if self._row[place] not in rows]
        behind = [self._place[row] for row in rows if self._place[row] >= len(rows)]
        self.cache.swap(front, behind, max(self._lengths))
        for a, b in zip(front, behind, strict=True):
            self._row[a], self._row[b] = self._row[b], self._row[a]
            self._place[self._row[a]], self._place[self._row[b]] = a, b

    def _prefill(self, chunks: Mapping[int, Sequence[int]]) -> Tensor:
        """[n, H] hidden states of the last tokens, by passes over chunks of about equal lengths."""
        first_with: dict[tuple[int, ...], int] = {}
        source = {
            row: row if self._lengths[row] else first_with.setdefault(tuple(ids), row)
            for row, ids in chunks.items()
        }
        found: dict[int, Tensor] = {}
        for part in self._parts({row: ids for row, ids in chunks.items() if source[row] == row}):
            found |= zip(part, self._append(part, [chunks[row] for row in part]), strict=True)
        copies = [row for row in chunks if source[row] != row]
        for row in copies:
            self._lengths[row] = len(chunks[row])
        if copies:
            self.cache.copy(
                [self._place[source[row]] for row in copies],
                [self._place[row] for row in copies],
                max(self._lengths[row] for row in copies),
            )
        return torch.stack([found[source[row]] for row in chunks])

    def _parts(self, chunks: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
        few = self.prefill_tokens if self._buffers else _FEW_TOKENS
        parts = batches_alike(
            chunks, lambda row: len(chunks[row]), self.prefill_tokens, few, _PADDING_SHARE
        )
        for part in parts:
            yield sorted(part, key=self._place.__getitem__)

    def _append(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> Tensor:
        """[r, H] last hidden states by one pass over padded chunks; padding is unseen, overwritten later."""
        width = max(map(len, chunks))
        ids = torch.tensor([[*chunk, *[0] * (width - len(chunk))] for chunk in chunks])
        before = torch.tensor([self._lengths[row] for row in rows], device=self.device)[:, None]
        last = torch.tensor([len(chunk) - 1 for chunk in chunks], device=self.device)
        steps = torch.arange(width, device=self.device)
        columns = before + steps
        # padding must not stand beyond the model's last position
        position = (before + torch.minimum(steps, last[:, None])).clamp(min=0)
        end = max(self._lengths[row] for row in rows) + width
        if end == width and self._window is None:
            mask = None  # nothing precedes: causal order is enough
        else:
            column = torch.arange(end, device=self.device)
            mask = self._mask(column <= columns[..., None], columns, column)
        places = [self._place[row] for row in rows]
        among = slice(places[0], places[0] + len(places))
        seen = among if places == list(range(among.start, among.stop)) else None
        self.cache.reserve(end)
        self.cache.access = Access(
            torch.tensor(places, device=self.device), columns, end, seen, is_first=end == width
        )
        hidden = self._hidden(ids.to(self.device), mask, position)
        for row, chunk in zip(rows, chunks, strict=True):
            self._lengths[row] += len(chunk)
        return hidden[torch.arange(len(rows), device=self.device), last.clamp(min=0)]

    def _hidden(self, ids: Tensor, mask: Any, position: Tensor) -> Tensor:
        hidden: Tensor = self.model.get_decoder()(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _mask(self, seen: Tensor, position: Tensor, column: Tensor) -> Any:
        """The attention mask of a pass, by kind if layers differ.

        Args:
            seen: [r, t, L] bool, by order alone.
            position: [r, t] of the tokens.
            column: [L] positions of what the cache holds.
        """
        if self._window is None:
            mask = self._as_mask(seen)
            return {"full_attention": mask, "conv": None} if self._convolves else mask
        near = position[..., None] - column < self._window
        if not self._mixed:
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


class _FixedBuffers:
    """A cache, and the loops over it, that the decoders of one model use one after another."""

    def __init__(self, cache: StaticCache, owner: BatchDecoder) -> None:
        self.cache, self.owner = cache, ref(owner)
        self._loops: dict[tuple[int, Sampling], TokenLoop] = {}

    def loop_rows(self, wanted: int) -> int:
        """The rows of the smallest loop that holds so many: all rows, half of them, a quarter, ..."""
        rows = self.cache.rows
        while rows // 2 >= max(wanted, _FEWEST_LOOPED):
            rows //= 2
        return rows

    def loop(self, rows: int, sampling: Sampling, device: torch.device) -> TokenLoop:
        """The loop of so many rows, which remembers its graphs."""
        key = rows, sampling
        if key not in self._loops:
            self._loops[key] = TokenLoop(rows, sampling, device)
        return self._loops[key]


def release_buffers(model: Any, most: float) -> None:
    """Gives up the model's fixed buffers, and the graphs over them, if they take more than ``most`` bytes."""
    found = _fixed.get(model)
    if found is not None and found.cache.bytes > most:
        del _fixed[model]


def _fixed_buffers(model: Any, rows: int, owner: BatchDecoder) -> _FixedBuffers | None:
    """The model's buffers, if they are large enough and no other decoder has them; else new ones."""
    found = _fixed.get(model)
    if found is not None and found.owner() is None and found.cache.rows >= rows:
        found.owner = ref(owner)
        return found
    cache = static_cache(model, rows, BUCKET)
    if cache is None:
        return None
    _fixed[model] = _FixedBuffers(cache, owner)
    return _fixed[model]


Decoder = BatchDecoder | PlainDecoder
"""whatever holds growing sequences"""
