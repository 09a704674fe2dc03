"""What a model's layers can do, found out by small passes: no flag of a class says it reliably."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from paw_train.policies.local.attention import NAME
from paw_train.policies.local.attention_blocks import layout
from paw_train.policies.local.fallback import FIRST, SECOND, close, hidden_of, undisturbed
from paw_train.rollouts.tokens import TokenRow, collate

_BY_LENGTH = ("dynamic", "longrope")
"""rotary embeddings that depend on the longest position of a batch"""
_joins: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def takes_blocks(model: Any) -> bool:
    """Whether sequences that are joined into one row, with ``AttentionBlocks``, stay apart in a model.

    Its attention must be ``grouped_attention`` and get the keywords that the model is given.
    """
    inner = model.get_decoder()
    passes = bool(getattr(inner, "_supports_attention_backend", False))
    if not passes or getattr(model.config, "_attn_implementation", None) != NAME:
        return False
    if any(kind in _BY_LENGTH for kind in _rotary_kinds(model.config)):
        return False
    if inner not in _joins:
        _joins[inner] = undisturbed(inner, _joined_as_alone)
    return _joins[inner]


def _rotary_kinds(config: Any) -> list[str]:
    """Of all layers."""
    found = getattr(config, "rope_parameters", None) or {}
    each = [found] if "rope_type" in found else [v for v in found.values() if isinstance(v, dict)]
    return [str(one.get("rope_type")) for one in each]


def _joined_as_alone(inner: Any) -> bool:
    device = next(inner.parameters()).device
    rows = [TokenRow(list(ids)) for ids in (FIRST, SECOND)]
    batch = collate(rows, 0, can_join=True).to(device)
    found = inner(input_ids=batch.input_ids, use_cache=False, **layout(batch)).last_hidden_state[0]
    alone = [hidden_of(inner, ids) for ids in (FIRST, SECOND)]
    return close(found, torch.cat(alone), found.dtype)
