"""Attention over sequences, and branches of them, that are joined into one row.

A mask for each pair of tokens would cost the square of the row. Here each part of the row attends only to
what it follows: its queries and those keys are gathered into blocks of about equal sizes, and what comes
out is put back in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from paw_train.rollouts.tokens import Branch, TokenBatch

_PADDING = 1.15
"""pairs of query and key in a block to those that are needed, up to which parts share a block"""
_CALL_PAIRS = 4096
"""pairs whose attention costs about as much as one more block"""


@dataclass(frozen=True, slots=True)
class Block:
    """Parts that are computed together: n of them, q queries and k keys each."""

    queries: Tensor
    """[n, q] places in the row; one that is not needed is place 0"""
    keys: Tensor
    """[n, k] places in the row: the part itself, then what it follows"""
    mask: Tensor | None
    """[n, 1, q, k] bool; ``None``: each query sees the keys up to its own"""


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """All parts of a row."""

    blocks: list[Block]
    places: Tensor
    """[T] of each token of the row, which of the blocks' queries it is"""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Tensor:
        """Attention of each token to its part up to itself and to what that follows.

        Args:
            module: the attention layer.
            query: [1, H, T, D].
            key: [1, K, T, D] with H a multiple of K.
            value: [1, K, T, D].
            mask: not used.
            kwargs: ``scaling`` and what else the stock function takes.

        Returns:
            [1, T, H, D]
        """
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        rows = [_token_rows(x) for x in (query, key, value)]
        heads = (query.shape[1], key.shape[1], value.shape[1])
        found = []
        for block in self.blocks:
            q, k, v = (
                _taken(row, places, count)
                for row, places, count in zip(
                    rows, (block.queries, block.keys, block.keys), heads, strict=True
                )
            )
            output, _ = sdpa_attention_forward(module, q, k, v, block.mask, **kwargs)
            found.append(output.flatten(2).flatten(0, 1))
        together = embedding(self.places, torch.cat(found))
        result: Tensor = together.unflatten(-1, (heads[0], -1))
        return result[None]


def _token_rows(x: Tensor) -> Tensor:
    """[1, H, T, D] as [T, H * D]."""
    return x[0].transpose(0, 1).flatten(1)


def _taken(rows: Tensor, places: Tensor, heads: int) -> Tensor:
    """[n, H, t, D] of the given places [n, t]."""
    # embedding and index_select give the same; on a CPU it is twice as fast, forward and backward
    taken: Tensor = embedding(places, rows).unflatten(-1, (heads, -1))
    return taken.transpose(1, 2)


def layout(batch: TokenBatch) -> dict[str, Any]:
    """Keywords that a model has to be given of a batch: none, unless its rows are joined."""
    if batch.branches is None:
        return {}
    device = batch.input_ids.device
    return {
        # no mask: this one only keeps the model from making its own
        "attention_mask": torch.ones((1, 1, 0, 0), dtype=torch.bool, device=device),
        "position_ids": batch.positions,
        "blocks": attention_blocks(batch.branches, device),
    }


def attention_blocks(branches: Sequence[Branch], device: torch.device) -> AttentionBlocks:
    """Gathers the parts of a row, which cover it, into blocks."""
    places: list[tuple[int, int]] = []  # (place in the row, number among the blocks' queries)
    blocks, at = [], 0
    for group in _groups(branches):
        block = _block(group)
        width = block.queries.shape[1]
        for number, branch in enumerate(group):
            first = at + number * width
            places += zip(range(*branch.span), range(first, first + width), strict=False)
        at += block.queries.numel()
        mask = None if block.mask is None else block.mask.to(device)
        blocks.append(Block(block.queries.to(device), block.keys.to(device), mask))
    order = torch.tensor([query for _, query in sorted(places)], device=device)
    return AttentionBlocks(blocks, order)


def _groups(branches: Sequence[Branch]) -> Iterator[list[Branch]]:
    """Parts of about equal sizes; those that follow nothing apart from those that do."""
    group: list[Branch] = []
    needed = 0
    for branch in sorted(branches, key=_sizes, reverse=True):
        sizes, more = [_sizes(b) for b in (*group, branch)], _pairs(branch)
        queries, followed = (max(s[i] for s in sizes) for i in (2, 1))
        padded = len(sizes) * queries * (queries + followed)
        same_kind = not group or sizes[0][0] == sizes[-1][0]
        if group and not (same_kind and padded <= _PADDING * (needed + more) + _CALL_PAIRS):
            yield group
            group, needed = [], 0
        group.append(branch)
        needed += more
    if group:
        yield group


def _sizes(branch: Branch) -> tuple[bool, int, int]:
    """(whether it follows something, tokens that it follows, its own tokens)."""
    followed = sum(end - start for start, end in branch.shared)
    return followed > 0, followed, branch.span[1] - branch.span[0]


def _pairs(branch: Branch) -> int:
    _, followed, own = _sizes(branch)
    return own * (own + followed)


def _block(group: Sequence[Branch]) -> Block:
    sizes = [_sizes(branch) for branch in group]
    own, followed = (max(s[i] for s in sizes) for i in (2, 1))
    queries = torch.zeros((len(group), own), dtype=torch.long)
    before = torch.zeros((len(group), followed), dtype=torch.long)
    for i, branch in enumerate(group):
        queries[i, : sizes[i][2]] = torch.arange(*branch.span)
        if branch.shared:
            before[i, : sizes[i][1]] = torch.cat([torch.arange(*span) for span in branch.shared])
    if not followed:
        return Block(queries, queries, None)
    causal = torch.ones((own, own), dtype=torch.bool).tril().expand(len(group), 1, own, own)
    seen = torch.arange(followed) < torch.tensor([s[1] for s in sizes])[:, None]
    seen = seen[:, None, None].expand(-1, 1, own, followed)
    return Block(queries, torch.cat([queries, before], 1), torch.cat([causal, seen], -1))
