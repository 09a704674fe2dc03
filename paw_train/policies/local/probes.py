"""What a model's layers can do, found out by small passes: no flag of a class says it reliably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from paw_train.policies.local.attention import NAME
from paw_train.policies.local.attention_blocks import layout
from paw_train.rollouts.tokens import TokenRow, collate

FIRST, SECOND = [1, 2, 3, 3, 1, 2], [2, 1, 3, 2]
"""token ids that every vocabulary has"""
_BY_LENGTH = ("dynamic", "longrope")
"""rotary embeddings that depend on the longest position of a batch"""
_joins: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_continues: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


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


def continues_by_chunks(model: Any, cache_name: str) -> bool:
    """Whether a cache can be continued by several tokens at once; otherwise one by one.

    Args:
        model: a Hugging Face causal language model.
        cache_name: keyword of its cache.

    Raises:
        ValueError: neither gives what the model gives for a whole context.
    """
    inner = model.get_decoder()
    if inner not in _continues:
        for chunks in (True, False):
            if undisturbed(inner, lambda m, c=chunks: _continued_as_whole(m, cache_name, c)):  # type: ignore[misc]
                _continues[inner] = chunks
                break
        else:
            if not hidden_of(inner, FIRST).isfinite().all():
                raise ValueError(
                    f"{type(model).__name__} computes NaN or infinities: its weights are damaged, or "
                    "it diverged in training."
                )
            raise ValueError(
                f"{type(model).__name__} does not go on from its cache as it reads a whole context, so it "
                "cannot be sampled from here; choose another model, or rollout.engine=vllm."
            )
    return _continues[inner]


def _rotary_kinds(config: Any) -> list[str]:
    """Of all layers."""
    found = getattr(config, "rope_parameters", None) or {}
    each = [found] if "rope_type" in found else [v for v in found.values() if isinstance(v, dict)]
    return [str(one.get("rope_type")) for one in each]


def undisturbed(inner: Any, check: Callable[[Any], bool]) -> bool:
    """The check without dropout; a model that raises does not pass it."""
    training = inner.training
    inner.eval()
    try:
        with torch.no_grad():
            return check(inner)
    except Exception:  # whatever a model of somebody else's raises means that it cannot
        return False
    finally:
        inner.train(training)


def _joined_as_alone(inner: Any) -> bool:
    device = next(inner.parameters()).device
    rows = [TokenRow(list(ids)) for ids in (FIRST, SECOND)]
    batch = collate(rows, 0, can_join=True).to(device)
    found = inner(input_ids=batch.input_ids, use_cache=False, **layout(batch)).last_hidden_state[0]
    alone = [hidden_of(inner, ids) for ids in (FIRST, SECOND)]
    return close(found, torch.cat(alone), found.dtype)


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


def hidden_of(inner: Any, ids: list[int], **keywords: Any) -> Tensor:
    """[t, H] last hidden states of one sequence by itself."""
    tokens = torch.tensor([ids], device=next(inner.parameters()).device)
    hidden: Tensor = inner(input_ids=tokens, **{"use_cache": False, **keywords}).last_hidden_state
    return hidden[0]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether two results of a model in this precision are equal but for rounding."""
    tolerance = {torch.float64: 1e-4, torch.float32: 1e-2}.get(dtype, 0.05)  # TF32 is float32
    return bool((found - expected).norm() <= tolerance * expected.norm())
