"""Batched decoding with a key-value cache that outlives a turn.

A ``BatchDecoder`` holds B growing sequences. ``feed`` appends tokens of any number to each;
shorter ones leave holes in the cache, which the attention mask hides and position ids skip, so a
row computes what it would alone. Rows that have ended their response lie idle behind the others until
the next ``feed``; rows whose first contexts are equal share one prefill; ``keep`` drops rows for good.
``branch`` looks at many continuations of each row at once and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from paw_train.policies.local.kv_cache import GrowingLayer, growing_cache, window_of
from paw_train.policies.local.sampling import sample_tokens, uniforms
from paw_train.policies.local.stop_strings import StopTexts
from paw_train.policies.local.token_tree import TokenTree
from paw_train.rollouts.policy import Response, Sampling
from paw_train.settings.rollout import PREFILL_TOKENS

_IDLE_SHARE = 1 / 8
"""ended rows, of those computed, beyond which they are moved away: some copies of rows, against
computing them at every token that follows"""


class BatchDecoder:
    """B sequences that grow together.

    Args:
        model: a Hugging Face causal language model.
        rows: B.
        prefill_tokens: most padded tokens of one forward pass of ``feed`` (a single row may have
            more): memory, not results.
    """

    def __init__(self, model: Any, rows: int, prefill_tokens: int = PREFILL_TOKENS) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.prefill_tokens = prefill_tokens
        self.count = rows
        cache = growing_cache(model)
        self._layers: list[GrowingLayer] = list(cache.layers) if cache else []  # type: ignore[arg-type]
        self._window = window_of(model.config)
        self.cache = cache or DynamicCache(config=model.config)
        self._order = list(range(rows))
        """the row at each place of the cache; those at work come first"""
        self._working = rows
        self._mask = torch.zeros((rows, 0), dtype=torch.bool, device=self.device)
        self._lengths = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._width = 0
        """columns of the cache in use"""

    @torch.no_grad()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Appends ``chunks[b]`` to row b (it may be empty, but not the first time).

        Returns:
            [B, V] float32 logits after each row's last token.
        """
        if len(chunks) != self.count:
            raise ValueError(f"The decoder has {self.count} rows, got {len(chunks)} chunks.")
        self._working = self.count
        if self._width == 0 and self._layers:
            return self._feed_first(chunks)
        hidden = self._feed_places([chunks[row] for row in self._order])
        return self._logits(hidden[self._places()])

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
        hidden = self._feed_places([chunks[row] for row in working])
        return working, self._logits(hidden)

    def _feed_first(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Computes each different context once, the longest first, so that padding is short."""
        if not all(chunks):
            raise ValueError("A row's first chunk is empty; it has nothing to answer.")
        different = sorted({tuple(chunk) for chunk in chunks}, key=len, reverse=True)
        place_of = {chunk: i for i, chunk in enumerate(different)}
        places = torch.tensor([place_of[tuple(chunk)] for chunk in chunks], device=self.device)
        self._mask = self._mask[: len(different)]
        self._lengths = self._lengths[: len(different)]
        hidden = self._feed_places(different)
        if len(different) == self.count:
            self._order = places.argsort().tolist()
        else:
            self._take(places, torch.arange(self._width, device=self.device))
        return self._logits(hidden)[places]

    def _feed_places(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Appends to each place of the cache, some places at a time; [places, H] last hidden states."""
        widest = max(1, max(len(chunk) for chunk in chunks))
        hidden, start = [], 0
        while start < len(chunks):
            if self._layers:
                stop = start + max(1, self.prefill_tokens // max(1, len(chunks[start])))
                stop = min(
                    stop, start + max(1, self.prefill_tokens // _longest(chunks[start:stop]))
                )
            else:
                stop = len(chunks)
            hidden.append(self._append(slice(start, min(stop, len(chunks))), chunks[start:stop]))
            start = stop
        self._width += widest
        return torch.cat(hidden)

    @property
    def can_fork(self) -> bool:
        """Whether ``fork`` and ``feed_some`` work: they need a cache that forgets."""
        return bool(self._layers)

    @property
    def can_branch(self) -> bool:
        """Whether ``branch`` works: it needs a cache that forgets, and attention that takes any mask."""
        kind = str(getattr(self.model.config, "_attn_implementation", ""))
        return bool(self._layers) and (kind.endswith("sdpa") or kind == "eager")

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
            places = slice(start, start + len(rows))
            for row, hidden in zip(rows, self._peek(places, [trees[r] for r in rows]), strict=True):
                found[row] = hidden[: len(trees[row].inner)]
            start += len(rows)
        return [found[row] for row in range(self.count)]

    def _peek(self, places: slice, trees: Sequence[TokenTree]) -> Tensor:
        """[r, N, H] hidden states of the trees' inner nodes, padded; the cache's width stays."""
        width = max(1, max(len(tree.inner) for tree in trees))
        ids = torch.zeros((len(trees), width), dtype=torch.long, device=self.device)
        depth = torch.zeros_like(ids)
        # a node of the padding sees itself, so that its attention is over something
        line = torch.eye(width, dtype=torch.bool, device=self.device).repeat(len(trees), 1, 1)
        for i, tree in enumerate(trees):
            n = len(tree.inner)
            if n:
                ids[i, :n] = torch.tensor(tree.inner, device=self.device)
                depth[i, :n] = torch.tensor(tree.depths, device=self.device)
                line[i, :n, :n] = tree.lineage().to(self.device)
        start, end = self._width, self._width + width
        self._make_room(end)
        positions = self._lengths[places][:, None] + depth
        for layer in self._layers:
            layer.aim(places, start, self._mask.shape[0])
        return self.model.get_decoder()(  # type: ignore[no-any-return]
            input_ids=ids,
            attention_mask=self._branched(places, positions, line),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state

    def _branched(self, places: slice, positions: Tensor, line: Tensor) -> Any:
        """The attention mask of ``branch``: [r, 1, N, width + N], by kind where layers differ."""
        kind = str(getattr(self.model.config, "_attn_implementation", ""))
        past = self._mask[places, : self._width]
        seen = torch.cat([past[:, None, :].expand(-1, line.shape[1], -1), line], -1)[:, None]
        if self._window is None:
            return self._as_mask(seen, kind)
        column = torch.cat([past.cumsum(1) - 1, positions], dim=1)
        near = positions[:, None, :, None] - column[:, None, None, :] < self._window.size
        near = self._as_mask(seen & near, kind)
        if not self._window.mixed:
            return near
        return {"full_attention": self._as_mask(seen, kind), "sliding_attention": near}

    def logits_of(self, hidden: Tensor) -> Tensor:
        """[n, V] float32 logits of [n, H] last hidden states."""
        return self._logits(hidden)

    @torch.no_grad()
    def advance(self, tokens: Mapping[int, int]) -> tuple[list[int], Tensor]:
        """Appends one token to each of the given rows; the others are idle until the next ``feed``.

        Args:
            tokens: by row; only rows that are not idle yet.

        Returns:
            The rows, in the decoder's order, and their [rows, V] float32 logits.
        """
        working = self._order[: self._working]
        if len(tokens) < len(working) * (1 - _IDLE_SHARE) and self._layers:
            self._set_idle(tokens)
            working = self._order[: self._working]
        chunks = [[tokens[row]] if row in tokens else [] for row in working]
        hidden = self._append(slice(0, len(working)), chunks)
        self._width += 1
        going = [place for place, row in enumerate(working) if row in tokens]
        if len(going) < len(working):
            hidden = hidden[torch.tensor(going, device=self.device)]
        return [working[place] for place in going], self._logits(hidden)

    def _set_idle(self, going: Mapping[int, Any]) -> None:
        """Moves the rows that go on to the front of the cache, by swaps."""
        count = len(going)
        front = [i for i in range(count) if self._order[i] not in going]
        back = [i for i in range(count, self._working) if self._order[i] in going]
        for a, b in zip(front, back, strict=True):
            self._order[a], self._order[b] = self._order[b], self._order[a]
        self._working = count
        if not front:
            return
        a_index = torch.tensor(front, device=self.device)
        b_index = torch.tensor(back, device=self.device)
        both, crossed = torch.cat([a_index, b_index]), torch.cat([b_index, a_index])
        self._mask[both] = self._mask[crossed]
        self._lengths[both] = self._lengths[crossed]
        for layer in self._layers:
            layer.swap(a_index, b_index, self._width)

    def _append(self, places: slice, chunks: Sequence[Sequence[int]]) -> Tensor:
        """One forward pass over neighbouring places; [r, H] hidden states after their last tokens."""
        width = _longest(chunks)
        ids = torch.tensor([[*chunk, *[0] * (width - len(chunk))] for chunk in chunks])
        sizes = torch.tensor([len(chunk) for chunk in chunks], device=self.device)
        steps = torch.arange(width, device=self.device)
        start, end = self._width, self._width + width
        self._make_room(end)
        self._mask[places, start:end] = steps < sizes[:, None]
        lengths = self._lengths[places]
        positions = lengths[:, None] + torch.minimum(steps, (sizes[:, None] - 1).clamp(min=0))
        self._lengths[places] = lengths + sizes
        for layer in self._layers:
            layer.aim(places, start, self._mask.shape[0])
        hidden = self.model.get_decoder()(
            input_ids=ids.to(self.device),
            attention_mask=self._visible(places, start, positions),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        last = (sizes - 1).clamp(min=0)
        return hidden[torch.arange(len(chunks), device=self.device), last]  # type: ignore[no-any-return]

    def _visible(self, places: slice, start: int, positions: Tensor) -> Any:
        """The attention mask of a pass: ``None`` for a first one, where causal order is enough."""
        end = start + positions.shape[1]
        kind = str(getattr(self.model.config, "_attn_implementation", ""))
        if not self._layers or not (kind.endswith("sdpa") or kind == "eager"):
            return self._mask[places, :end].long()
        if start == 0 and self._window is None:
            return None
        seen = self._seen(places, start, end)
        if self._window is None:
            return self._as_mask(seen, kind)
        # positions count a row's own tokens, so holes do not widen the distance
        column = self._mask[places, :end].cumsum(1) - 1
        near = positions[:, None, :, None] - column[:, None, None, :] < self._window.size
        near = self._as_mask(seen & near, kind)
        if not self._window.mixed:
            return near
        return {"full_attention": self._as_mask(seen, kind), "sliding_attention": near}

    def _seen(self, places: slice, start: int, end: int) -> Tensor:
        """[r, 1, t, end] bool: what was there before, and of what is new, what comes no later."""
        width = end - start
        if width == 1:
            return self._mask[places, None, None, :end]
        past = self._mask[places, None, None, :start].expand(-1, 1, width, start)
        causal = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        return torch.cat([past, causal.expand(past.shape[0], 1, width, width)], dim=-1)

    def _as_mask(self, seen: Tensor, kind: str) -> Tensor:
        if kind != "eager":
            return seen
        least = torch.finfo(self.model.dtype).min
        return torch.zeros_like(seen, dtype=self.model.dtype).masked_fill_(~seen, least)

    def _make_room(self, end: int) -> None:
        if self._mask.shape[1] < end:
            room = self._mask.new_zeros((self._mask.shape[0], end + end // 2 + 64))
            room[:, : self._mask.shape[1]] = self._mask
            self._mask = room

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden).float()
        return finish_logits(logits, self.model.config)

    def _places(self) -> Tensor:
        """[B] where in the cache each row is."""
        return torch.tensor(self._order, device=self.device).argsort()

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but the given ones, in the given order, and closes the holes of the cache."""
        places = self._places()[torch.tensor(list(rows), dtype=torch.long, device=self.device)]
        self.count = self._working = len(rows)
        self._order = list(range(len(rows)))
        if not self._layers:
            self._mask, self._lengths = self._mask[places], self._lengths[places]
            self.cache.batch_select_indices(places)
            return
        mask, longest = self._mask[places, : self._width], int(self._lengths[places].max())
        # a stable sort moves each row's tokens to the front without changing their order
        self._take(places, (~mask).byte().argsort(dim=1, stable=True)[:, :longest])

    def fork(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Replaces all rows by beginnings of the given ones.

        Args:
            rows: of each new row, the row that it continues; one may be given many times.
            lengths: of each new row, how many of that row's tokens it has, at least 1.
        """
        self.keep(rows)
        self._lengths = torch.minimum(self._lengths, self._lengths.new_tensor(lengths))
        # `keep` has moved each row's tokens to the front
        columns = torch.arange(self._mask.shape[1], device=self.device)
        self._mask = self._mask & (columns < self._lengths[:, None])

    def _take(self, places: Tensor, columns: Tensor) -> None:
        """The cache with row b from ``places[b]``, and of it ``columns`` ([L] or [B, L])."""
        columns = columns.expand(len(places), -1)
        self._mask = self._mask[places].gather(1, columns)
        self._lengths = self._lengths[places]
        self._width = columns.shape[1]
        for layer in self._layers:
            layer.select(places, columns)

    def waste(self) -> float:
        """Share of the cache that holes take, of the columns that the longest row needs."""
        return 1.0 - int(self._lengths.max()) / max(1, self._width)


def _longest(chunks: Sequence[Sequence[int]]) -> int:
    return max(1, max(len(chunk) for chunk in chunks))


def finish_logits(logits: Tensor, config: Any) -> Tensor:
    """Logits as some models change them after the output layer (Gemma 2, Cohere, Granite)."""
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits


def respond(
    decoder: BatchDecoder,
    contexts: Sequence[Sequence[int]],
    chat: Any,
    sampling: Sampling,
    seeds: Sequence[int],
    stops: StopTexts | None = None,
    rows: Sequence[int] | None = None,
) -> list[Response]:
    """Feeds each row its new context and samples a response for each.

    A response ends with a stop text, an end token, or at ``max_tokens``. Its last token is sampled
    but not yet fed: the next context starts with it.

    Args:
        decoder: B rows, or more of which only ``rows`` are fed.
        contexts: B chunks, what was not fed yet.
        chat: decodes, and knows the end tokens.
        sampling: how tokens are sampled.
        seeds: B; row b's tokens depend on its own context and seed. They are the same in any batch, up
            to the rounding of the model's arithmetic, which differs a little between batch shapes.
        stops: of ``sampling.stop``, when there is one already (it remembers tokens).
        rows: B, the decoder's row of each context; ``None``: all rows, in order.
    """
    stops = stops or StopTexts(chat, sampling.stop)
    responses = [Response() for _ in contexts]
    noise = uniforms(seeds, sampling.max_tokens if sampling.temperature else 1)
    if rows is None:
        rows = range(len(contexts))
        working, logits = list(rows), decoder.feed(contexts)
    else:
        working, logits = decoder.feed_some(dict(zip(rows, contexts, strict=True)))
    number = {row: i for i, row in enumerate(rows)}
    for step in range(sampling.max_tokens):
        column = min(step, noise.shape[1] - 1)
        those = [number[row] for row in working]
        ids, logprobs = sample_tokens(logits, sampling, noise[those, column])
        going: dict[int, int] = {}
        for row, token, logprob in zip(working, ids.tolist(), logprobs.tolist(), strict=True):
            response = responses[number[row]]
            response.ids.append(token)
            response.logprobs.append(logprob)
            if not stops.ends(response.ids):
                going[row] = token
        if not going or step + 1 == sampling.max_tokens:
            break
        working, logits = decoder.advance(going)
    for response in responses:
        response.text = stops.truncate(chat.decode(response.ids))
    return responses
