"""Batched decoding with the cache that a model brings along.

For recurrent states, windows that are measured in columns of the cache, keys that layers share, and flash
attention.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from paw_train.policies.local.sampling import logits_of

_NAMES = ("past_key_values", "cache_params")
"""what models call their cache"""
FIRST, SECOND = [1, 2, 3, 3, 1, 2], [2, 1, 3, 2]
"""token ids that every vocabulary has"""
_continues: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@dataclass(slots=True)
class _Group:
    """Rows that have read the same number of tokens, always together."""

    rows: list[int]
    cache: Any
    length: int


class PlainDecoder:
    """Sequences that grow together as long as they grow alike; the interface is that of ``BatchDecoder``.

    Rows whose chunks are equally long share a cache and a forward pass, without any padding; when they
    differ, the group divides, and each part goes on by itself. So results are exact, and dialogues of unequal
    turns are soon computed one by one.
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
        self._groups = [self._new_group(list(range(rows)))]

    @torch.no_grad()
    def feed(self, chunks: Mapping[int, Sequence[int]]) -> Tensor:
        """As ``BatchDecoder.feed``."""
        if not all(chunks.values()):
            raise ValueError("A row is given no tokens; there is nothing to answer.")
        self._divide(lambda row: len(chunks.get(row, ())))
        found: dict[int, Tensor] = {}
        for group in self._groups:
            if group.rows[0] in chunks:
                logits = self._read(group, [list(chunks[row]) for row in group.rows])
                found |= zip(group.rows, logits, strict=True)
        return torch.stack([found[row] for row in chunks])

    def rewind(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """As ``BatchDecoder.rewind``, but such a cache cannot go back: a row that does begins anew."""
        held = {row: group.length for group in self._groups for row in group.rows}
        anew = [row for row, length in lengths.items() if held[row] not in (0, length)]
        if anew:
            self._divide(lambda row: row in anew)
            self._groups = [group for group in self._groups if group.rows[0] not in anew]
            self._groups.append(self._new_group(anew))
        return {row: 0 if row in anew else held[row] for row in lengths}

    def keep(self, rows: Sequence[int]) -> None:
        """As ``BatchDecoder.keep``."""
        kept = []
        for group in self._groups:
            places = {row: i for i, row in enumerate(group.rows)}
            new = [number for number, row in enumerate(rows) if row in places]
            if new:
                self._select(group, [places[rows[number]] for number in new])
                kept.append(_Group(new, group.cache, group.length))
        self._groups, self.count = kept, len(rows)

    def _new_group(self, rows: list[int]) -> _Group:
        return _Group(rows, DynamicCache(config=self.model.config), 0)

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

    def _divide(self, kind: Callable[[int], Any]) -> None:
        """Divides groups whose rows are not all of one kind."""
        divided: list[_Group] = []
        for group in self._groups:
            parts: dict[Any, list[int]] = defaultdict(list)
            for place, row in enumerate(group.rows):
                parts[kind(row)].append(place)
            for places in parts.values():
                part = group if len(parts) == 1 else copy.deepcopy(group)
                if part is not group:
                    self._select(part, places)
                    part.rows = [group.rows[place] for place in places]
                divided.append(part)
        self._groups = divided

    def _select(self, group: _Group, places: Sequence[int]) -> None:
        if group.length:
            # every kind of layer can be reordered, also to fewer rows; not every kind can drop rows otherwise
            group.cache.reorder_cache(torch.tensor(list(places), device=self.device))


# No flag of a class says reliably what a model's layers can do: small passes find it out.


def continues_by_chunks(model: Any, cache_name: str) -> bool:
    """True if a cache can be continued by several tokens at once, False if one by one; else it raises."""
    inner = model.get_decoder()
    for chunks in (True, False):
        check = partial(_continued_as_whole, cache_name=cache_name, chunks=chunks)
        if inner not in _continues and undisturbed(inner, check):
            _continues[inner] = chunks
    if inner in _continues:
        return _continues[inner]
    why = (
        "does not go on from its cache as it reads a whole context, so it cannot be sampled from here; "
        "choose another model, or rollout.engine=vllm"
    )
    if not hidden_of(inner, FIRST).isfinite().all():
        why = "computes NaN or infinities: its weights are damaged, or it diverged in training"
    raise ValueError(f"{type(model).__name__} {why}.")


def _continued_as_whole(inner: Any, cache_name: str, chunks: bool) -> bool:
    cache = DynamicCache(config=inner.config)
    more = [SECOND] if chunks else [[token] for token in SECOND]
    parts = [FIRST, *more, [3], [1]]
    found = []
    for ids in parts:
        found.append(hidden_of(inner, ids, **{cache_name: cache}, use_cache=True))
        # another sequence in between, for models that keep their state in themselves
        hidden_of(inner, SECOND, **{cache_name: DynamicCache(config=inner.config)}, use_cache=True)
    whole = [token for ids in parts for token in ids]
    return close(torch.cat(found), hidden_of(inner, whole), found[0].dtype)


def undisturbed(inner: Any, check: Callable[[Any], bool]) -> bool:
    """The check without dropout; a model that raises does not pass it."""
    training = inner.training
    inner.eval()
    try:
        with torch.no_grad():
            return check(inner)
    except Exception:  # whatever somebody else's model raises means that it cannot
        return False
    finally:
        inner.train(training)


def hidden_of(inner: Any, ids: list[int], **keywords: Any) -> Tensor:
    """[t, H] last hidden states of one sequence by itself."""
    tokens = torch.tensor([ids], device=next(inner.parameters()).device)
    hidden: Tensor = inner(input_ids=tokens, **{"use_cache": False, **keywords}).last_hidden_state
    return hidden[0]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """True if two results of a model in this precision are equal except for rounding."""
    tolerance = {torch.float64: 1e-4, torch.float32: 1e-2}.get(dtype, 0.05)  # TF32 is float32
    return bool((found - expected).norm() <= tolerance * expected.norm())
