"""Batched decoding for models whose cache cannot hide padding: recurrent states, windows by cache column."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from paw_train.policies.local.logits import logits_of
from paw_train.policies.local.probes import continues_by_chunks
from paw_train.policies.local.whole_feed import WholeFeed

_NAMES = ("past_key_values", "cache_params")
"""what models call their cache"""


@dataclass(slots=True)
class _Group:
    """Rows that have read equally many tokens, always together."""

    rows: list[int]
    cache: Any
    length: int


class GroupDecoder(WholeFeed):
    """B sequences that grow together as long as they grow alike.

    Rows whose chunks are equally long share a cache and a forward pass, without any padding; where chunks
    differ, or some rows have ended, the group divides, and each part goes on by itself. So results are exact,
    and dialogues of unequal turns are soon computed one by one. Nothing can ``fork`` or ``branch``.

    Args:
        model: a Hugging Face causal language model.
        rows: B.

    Raises:
        ValueError: the model takes no cache, or does not go on from it.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.count = rows
        taken = inspect.signature(model.get_decoder().forward).parameters
        name = next((name for name in _NAMES if name in taken), None)
        if name is None:
            raise ValueError(
                f"{type(model).__name__} takes its cache under none of {', '.join(_NAMES)}, so it cannot be "
                "sampled from here; choose another model, or rollout.engine=vllm."
            )
        self._name, self._chunks = name, continues_by_chunks(model, name)
        self._groups = [_Group(list(range(rows)), self._fresh(), 0)]

    def _fresh(self) -> Any:
        return DynamicCache(config=self.model.config)

    @torch.no_grad()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """As ``BatchDecoder.feed``."""
        if len(chunks) != self.count:
            raise ValueError(f"The decoder has {self.count} rows, got {len(chunks)} chunks.")
        self._groups = [part for group in self._groups for part in self._divided(group, chunks)]
        found: Tensor | None = None
        for group in self._groups:
            ids = [list(chunks[row]) for row in group.rows]
            if not ids[0]:
                continue
            logits = self._read(group, ids)
            if found is None:
                found = logits.new_zeros((self.count, logits.shape[1]))
            found[torch.tensor(group.rows, device=self.device)] = logits
        if found is None:
            raise ValueError("No row has a new token.")
        return found

    def keep(self, rows: Sequence[int]) -> None:
        """As ``BatchDecoder.keep``."""
        kept = []
        for group in self._groups:
            places = {row: i for i, row in enumerate(group.rows)}
            new = [number for number, row in enumerate(rows) if row in places]
            if new:
                self._select(group.cache, [places[rows[number]] for number in new], group.length)
                kept.append(_Group(new, group.cache, group.length))
        self._groups, self.count = kept, len(rows)

    def _read(self, group: _Group, ids: list[list[int]]) -> Tensor:
        """[rows of the group, V] logits after the last of their new tokens."""
        tokens = torch.tensor(ids, device=self.device)
        at_once = tokens.shape[1] if self._chunks or not group.length else 1
        for chunk in tokens.split(at_once, 1):
            hidden = self.model.get_decoder()(
                input_ids=chunk, use_cache=True, **{self._name: group.cache}
            ).last_hidden_state
        group.length += tokens.shape[1]
        return logits_of(self.model, hidden[:, -1])

    def _divided(self, group: _Group, chunks: Sequence[Sequence[int]]) -> Iterator[_Group]:
        """Parts of the group whose chunks are equally long."""
        parts: dict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(group.rows):
            parts[len(chunks[row])].append(place)
        if len(parts) == 1:
            yield group
            return
        for places in parts.values():
            cache = copy.deepcopy(group.cache) if group.length else self._fresh()
            self._select(cache, places, group.length)
            yield _Group([group.rows[place] for place in places], cache, group.length)

    def _select(self, cache: Any, places: Sequence[int], length: int) -> None:
        if length:
            # every kind of layer can be reordered, also to fewer rows; not every kind can drop rows otherwise
            cache.reorder_cache(torch.tensor(list(places), device=self.device))
