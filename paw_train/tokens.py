"""Transitions as token ids: what one forward pass reads, and where actions and observations lie in it.

A ``TokenRow`` is one sequence. In window mode it is one transition (prompt, response, next
observation), in conversation mode a whole episode; either way every transition is a pair of spans.
Ids are those that were sampled. Text is never tokenised again to find a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class StepSpans:
    """Where one transition lies in its row; spans are [start, end) in tokens."""

    action: tuple[int, int]
    observation: tuple[int, int]
    """o_{t+1}; an empty span where there is none to learn from"""
    logprobs: list[float]
    """log-probability of each action token when it was sampled, in nats"""
    index: int = -1
    """number of the transition in the update's pool"""


@dataclass(slots=True)
class TokenRow:
    """One sequence of the forward pass."""

    ids: list[int] = field(default_factory=list)
    steps: list[StepSpans] = field(default_factory=list)

    def extend(self, ids: Sequence[int]) -> tuple[int, int]:
        """Appends ids and returns their span."""
        start = len(self.ids)
        self.ids.extend(ids)
        return start, len(self.ids)


@dataclass(slots=True)
class TokenBatch:
    """Padded rows and, for each transition in them, where to find its tokens.

    ``S`` transitions in ``B`` rows; ``W`` is 1 + the most tokens (action + observation) of a
    transition. Column 0 of the ``[S, W]`` tensors is empty, as in a row whose first token nothing
    predicts.
    """

    input_ids: Tensor
    """[B, T]"""
    attention_mask: Tensor
    """[B, T]"""
    row: Tensor
    """[S, W] row of each token"""
    column: Tensor
    """[S, W] column of each token"""
    action_mask: Tensor
    """[S, W] bool"""
    observation_mask: Tensor
    """[S, W] bool"""
    old_logprobs: Tensor
    """[S, W] log-probabilities at sampling time, 0 outside the action"""
    index: Tensor
    """[S] numbers in the update's pool"""

    @property
    def transitions(self) -> int:
        """S"""
        return len(self.index)

    def wanted(self) -> Tensor:
        """[B, T] bool: the tokens whose log-probability some transition needs."""
        marked = torch.zeros_like(self.input_ids, dtype=torch.bool)
        used = self.action_mask | self.observation_mask
        marked[self.row[used], self.column[used]] = True
        return marked

    def gather(self, values: Tensor) -> Tensor:
        """[B, T] per-token values of the rows as [S, W], one line a transition, 0 where empty."""
        used = self.action_mask | self.observation_mask
        return torch.where(used, values[self.row, self.column], 0.0)

    def to(self, device: torch.device) -> TokenBatch:
        """The batch on another device."""
        return TokenBatch(*(getattr(self, name).to(device) for name in self.__slots__))


def collate(rows: Sequence[TokenRow], pad_id: int) -> TokenBatch:
    """Pads rows on the right and lays out the spans of their transitions."""
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.tensor(row.ids)
        attention[b, : len(row.ids)] = 1
    steps = [(b, step) for b, row in enumerate(rows) for step in row.steps]
    span = 1 + max((_length(s.action) + _length(s.observation) for _, s in steps), default=0)
    shape = (len(steps), span)
    row_of = torch.zeros(shape, dtype=torch.long)
    column = torch.zeros(shape, dtype=torch.long)
    action = torch.zeros(shape, dtype=torch.bool)
    observation = torch.zeros(shape, dtype=torch.bool)
    old = torch.zeros(shape)
    for s, (b, step) in enumerate(steps):
        cut = 1 + _length(step.action)
        end = cut + _length(step.observation)
        row_of[s] = b
        column[s, 1:cut] = torch.arange(*step.action)
        column[s, cut:end] = torch.arange(*step.observation)
        action[s, 1:cut] = True
        observation[s, cut:end] = True
        old[s, 1:cut] = torch.tensor(step.logprobs)
    index = torch.tensor([step.index for _, step in steps], dtype=torch.long)
    return TokenBatch(ids, attention, row_of, column, action, observation, old, index)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def micro_batches(rows: Sequence[TokenRow], token_budget: int) -> Iterator[list[TokenRow]]:
    """Cuts rows, longest first, into batches of at most ``token_budget`` padded tokens (one row at least)."""
    ordered = sorted(rows, key=lambda row: len(row.ids), reverse=True)
    batch: list[TokenRow] = []
    for row in ordered:
        if batch and len(batch[0].ids) * (len(batch) + 1) > token_budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
