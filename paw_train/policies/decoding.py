"""Batched sampling with a key-value cache that outlives a turn.

A ``BatchDecoder`` holds B growing sequences. ``feed`` appends tokens of any number to each;
shorter ones leave holes in the cache, which the attention mask hides and position ids skip, so a
row computes what it would alone. Finished rows are dropped with ``keep``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """A cache layer that writes in place into a buffer with room to spare.

    The stock layer copies the whole cache for every token; for a small model over long dialogues
    that copy costs more than the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends [B, heads, t, dim] keys and values and returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = []
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        views = []
        for i, new in enumerate((key_states, value_states)):
            if len(self._buffers) <= i or self._buffers[i].shape[-2] < end:
                room = new.new_empty((*new.shape[:2], end + end // 2 + 64, new.shape[-1]))
                if start:
                    room[:, :, :start] = self._buffers[i][:, :, :start]
                self._buffers[i : i + 1] = [room]
            self._buffers[i][:, :, start:end] = new
            views.append(self._buffers[i][:, :, :end])
        self.keys, self.values = views
        return self.keys, self.values

    def select(self, rows: Tensor, columns: Tensor) -> None:
        """Keeps the given rows [R] and, of each, the given columns [R, L]."""
        end = columns.shape[1]
        room = end + end // 4 + 64
        for i, buffer in enumerate(self._buffers):
            fresh = buffer.new_empty((len(rows), buffer.shape[1], room, buffer.shape[3]))
            index = columns[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
            torch.gather(buffer[rows], 2, index, out=fresh[:, :, :end])
            self._buffers[i] = fresh
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn."""

    temperature: float = 1.0
    """0 takes the most likely token"""
    max_tokens: int = 512
    """longest response, in tokens"""
    stop: tuple[str, ...] = ("</action>",)
    """texts that end a response (and belong to it)"""


@dataclass(slots=True)
class Response:
    """A sampled response."""

    ids: list[int]
    logprobs: list[float]
    """of each id at sampling time, temperature included, in nats"""
    text: str


class BatchDecoder:
    """B sequences that grow together.

    Args:
        model: a Hugging Face causal language model.
        rows: B.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.cache = _new_cache(model)
        self.mask = torch.zeros((rows, 0), dtype=torch.long, device=self.device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Appends ``chunks[b]`` to row b (it may be empty) and returns [B, V] logits after its last token."""
        sizes = torch.tensor([len(chunk) for chunk in chunks], device=self.device)
        width = max(1, int(sizes.max()))
        ids = torch.zeros((len(chunks), width), dtype=torch.long)
        for b, chunk in enumerate(chunks):
            ids[b, : len(chunk)] = torch.tensor(list(chunk), dtype=torch.long)
        steps = torch.arange(width, device=self.device)
        self.mask = torch.cat([self.mask, (steps < sizes[:, None]).long()], dim=1)
        positions = self.lengths[:, None] + torch.minimum(steps, (sizes[:, None] - 1).clamp(min=0))
        self.lengths = self.lengths + sizes
        hidden = self.model.get_decoder()(
            input_ids=ids.to(self.device),
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        last = hidden[torch.arange(len(chunks), device=self.device), (sizes - 1).clamp(min=0)]
        return self.model.get_output_embeddings()(last).float()  # type: ignore[no-any-return]

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but the given ones, in the given order, and closes the holes of the cache."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.device)
        self.mask, self.lengths = self.mask[index], self.lengths[index]
        growing = [layer for layer in self.cache.layers if isinstance(layer, GrowingLayer)]
        if not growing:
            self.cache.batch_select_indices(index)
            return
        # a stable sort moves each row's tokens to the front without changing their order
        columns = (1 - self.mask).argsort(dim=1, stable=True)[:, : int(self.lengths.max())]
        self.mask = self.mask.gather(1, columns)
        for layer in growing:
            layer.select(index, columns)

    def waste(self) -> float:
        """Share of the cache that holes take, of the columns that the longest row needs."""
        return 1.0 - int(self.lengths.max()) / max(1, self.mask.shape[1])


def _new_cache(model: Any) -> Cache:
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return DynamicCache(config=model.config)
    return Cache(layers=[GrowingLayer() for _ in range(model.config.num_hidden_layers)])


def draw(logits: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability under the tempered distribution.

    Args:
        logits: [B, V].
        temperature: 0 takes the most likely token (log-probabilities are then those at 1).
        generator: on the CPU; numbers are drawn there, so that a seed means the same everywhere.

    Returns:
        ids [B] and log-probabilities [B].
    """
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if temperature == 0:
        ids = logits.argmax(-1)
    else:
        # Gumbel-max: exact, and one uniform number a token instead of a cumulative sum
        noise = torch.rand(logits.shape, generator=generator).clamp_(min=1e-20)
        ids = (logprobs - torch.log(-torch.log(noise)).to(logprobs.device)).argmax(-1)
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)


def respond(
    decoder: BatchDecoder,
    contexts: Sequence[Sequence[int]],
    chat: Any,
    sampling: Sampling,
    generator: torch.Generator,
) -> list[Response]:
    """Feeds each row its new context and samples a response for each.

    A response ends with a stop text, the chat's end token, or at ``max_tokens``. Its last token is
    sampled but not yet fed: the next context starts with it.
    """
    stop_ids = _single_tokens(chat, sampling.stop)
    count = len(contexts)
    responses = [Response([], [], "") for _ in range(count)]
    going = [True] * count
    logits = decoder.feed(contexts)
    for _ in range(sampling.max_tokens):
        ids, logprobs = draw(logits, sampling.temperature, generator)
        chunks: list[list[int]] = [[] for _ in range(count)]
        for b, (token, logprob) in enumerate(zip(ids.tolist(), logprobs.tolist(), strict=True)):
            if not going[b]:
                continue
            responses[b].ids.append(token)
            responses[b].logprobs.append(logprob)
            going[b] = not _ends(responses[b].ids, chat, sampling.stop, stop_ids)
            if going[b]:
                chunks[b] = [token]
        if not any(going):
            break
        if len(responses[going.index(True)].ids) < sampling.max_tokens:
            logits = decoder.feed(chunks)
    for response in responses:
        response.text = chat.decode(response.ids)
    return responses


def _single_tokens(chat: Any, stop: Sequence[str]) -> frozenset[int] | None:
    """The stop texts as token ids, when each is one token of its own; else ``None``."""
    encoded = [chat.content(text) for text in stop]
    specials = set(chat.tokenizer.get_added_vocab().values())
    if all(len(ids) == 1 and ids[0] in specials for ids in encoded):
        return frozenset(ids[0] for ids in encoded)
    return None


def _ends(ids: list[int], chat: Any, stop: Sequence[str], stop_ids: frozenset[int] | None) -> bool:
    if ids[-1] == chat.end_id:
        return True
    if stop_ids is not None:
        return ids[-1] in stop_ids
    tail = chat.decode(ids[-16:])
    return any(text in tail for text in stop)
