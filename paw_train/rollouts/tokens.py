"""Transitions as token ids: what one forward pass reads, and where actions and observations lie in it.

A ``TokenRow`` is one sequence. In window mode it is one transition (prompt, response, next
observation), in conversation mode a whole episode; either way every transition is a pair of spans.
Ids are those that were sampled. Text is never tokenised again to find a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_MOST_PADDING = 0.05
"""share of padding beyond which a micro-batch ends"""
_PASS = 256
"""tokens that cost about as much as one more forward and backward pass"""

Span = tuple[int, int]
"""[start, end) in tokens of a row"""


@dataclass(slots=True)
class StepSpans:
    """The place of one transition in its row."""

    action: Span
    observation: Span
    """o_{t+1}; an empty span where there is none to learn from"""
    logprobs: list[float]
    """log-probability of each action token when it was sampled, in nats"""
    index: int = -1
    """number of the transition in the update's pool"""
    later: list[Span] = field(default_factory=list)
    """o_{t+2}, o_{t+3}, ... where they are supervised from here too (multi-step world model)"""
    left_out: list[Span] = field(default_factory=list)
    """parts of these observations that no world-model loss reads (see ``observation_filter``)"""
    importance: list[float] = field(default_factory=list)
    """importance weight of each action token, where another policy sampled it than ``logprobs`` are of;
    empty: 1"""

    @property
    def spans(self) -> list[Span]:
        """All spans: the action, o_{t+1}, and those further ahead."""
        return [self.action, self.observation, *self.later]

    @property
    def columns(self) -> list[list[int]]:
        """For each of ``spans``, its tokens in the row without those that are left out."""
        gone = {t for span in self.left_out for t in range(*span)}
        return [[t for t in range(*span) if t not in gone] for span in self.spans]

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the action, and those of o_{t+1} that are not left out."""
        action, observation, *_ = self.columns
        return len(action), len(observation)


@dataclass(slots=True)
class TokenRow:
    """One sequence of the forward pass."""

    ids: list[int] = field(default_factory=list)
    steps: list[StepSpans] = field(default_factory=list)
    prompt_tokens_cut: int = 0
    """tokens of a window-mode prompt that were left out to stay within the context limit"""

    def extend(self, ids: Sequence[int]) -> tuple[int, int]:
        """Appends ids and returns their span."""
        start = len(self.ids)
        self.ids.extend(ids)
        return start, len(self.ids)


@dataclass(slots=True)
class TokenBatch:
    """Rows, padded on the right, and for each transition in them, where to find its tokens.

    ``S`` transitions in ``B`` rows; ``W`` is 1 + the most tokens (action + observations) of a
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
    """[S, W] bool: o_{t+1}"""
    horizon: Tensor
    """[S, W] j on the tokens of o_{t+j}, 0 elsewhere"""
    old_logprobs: Tensor
    """[S, W] log-probabilities at sampling time, 0 outside the action"""
    index: Tensor
    """[S] numbers in the update's pool"""
    importance: Tensor | None = None
    """[S, W] weights of the action tokens, 1 elsewhere; ``None``: all are 1"""

    @property
    def transitions(self) -> int:
        """S"""
        return len(self.index)

    def used(self) -> Tensor:
        """[S, W] bool: action and observation tokens."""
        return self.action_mask | (self.horizon > 0)

    def gather(self, values: Tensor) -> Tensor:
        """[B, T] per-token values of the rows as [S, W], one line a transition, 0 where empty."""
        return torch.where(self.used(), values[self.row, self.column], 0.0)

    def actions_only(self) -> TokenBatch:
        """The batch without observations, truncated after its last action, where only actions are scored."""
        end = int(self.column[self.action_mask].max()) + 1
        return replace(
            self,
            input_ids=self.input_ids[:, :end],
            attention_mask=self.attention_mask[:, :end],
            column=torch.where(self.action_mask, self.column, 0),
            observation_mask=torch.zeros_like(self.observation_mask),
            horizon=torch.zeros_like(self.horizon),
        )

    def to(self, device: torch.device) -> TokenBatch:
        """The batch on another device."""
        tensors = {name: getattr(self, name) for name in self.__slots__}
        moved: dict[str, Any] = {
            n: t.to(device) for n, t in tensors.items() if isinstance(t, Tensor)
        }
        return replace(self, **moved)


def collate(rows: Sequence[TokenRow], pad_id: int) -> TokenBatch:
    """A batch of rows.

    Args:
        rows: whose transitions it is to hold.
        pad_id: fills rows up.
    """
    ids, attention = _padded_ids(rows, pad_id)
    steps = [(b, step) for b, row in enumerate(rows) for step in row.steps]
    places = [step.columns for _, step in steps]
    span = 1 + max((sum(map(len, columns)) for columns in places), default=0)
    shape = (len(steps), span)
    row_of = torch.zeros(shape, dtype=torch.long)
    column = torch.zeros(shape, dtype=torch.long)
    kind = torch.full(shape, -1, dtype=torch.long)
    old, importance = torch.zeros(shape), torch.ones(shape)
    for s, (b, step) in enumerate(steps):
        row_of[s] = b
        at = 1
        for number, columns in enumerate(places[s]):
            end = at + len(columns)
            column[s, at:end] = torch.tensor(columns, dtype=torch.long)
            kind[s, at:end] = number
            at = end
        old[s, 1 : 1 + _length(step.action)] = torch.tensor(step.logprobs)
        if step.importance:
            importance[s, 1 : 1 + _length(step.action)] = torch.tensor(step.importance)
    index = torch.tensor([step.index for _, step in steps], dtype=torch.long)
    return TokenBatch(
        ids,
        attention,
        row_of,
        column,
        kind == 0,
        kind == 1,
        kind.clamp(min=0),
        old,
        index,
        importance if any(step.importance for _, step in steps) else None,
    )


def _padded_ids(rows: Sequence[TokenRow], pad_id: int) -> tuple[Tensor, Tensor]:
    """(ids, attention mask), both [B, T]."""
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.tensor(row.ids)
        attention[b, : len(row.ids)] = 1
    return ids, attention


def _length(span: Span) -> int:
    return span[1] - span[0]


def micro_batches(rows: Sequence[TokenRow], token_budget: int) -> Iterator[list[TokenRow]]:
    """Splits rows, longest first, into batches of at most so many padded tokens (one row at least)."""
    return batches_alike(rows, lambda row: len(row.ids), token_budget, _PASS, _MOST_PADDING)


def batches_alike(
    items: Iterable[T], length: Callable[[T], int], most: int, few: int, share: float
) -> Iterator[list[T]]:
    """Batches of items of about equal length, longest first.

    Args:
        items: to be read in padded passes.
        length: tokens of an item.
        most: padded tokens of a batch that has more than one item.
        few: padding up to which it is cheaper than one more pass, in tokens.
        share: the same, as a share of the padded tokens; the larger of both counts.
    """
    batch: list[T] = []
    widest = tokens = 0
    for item in sorted(items, key=length, reverse=True):
        padded = widest * (len(batch) + 1)
        padding = padded - tokens - length(item)
        if batch and (padded > most or padding > max(few, share * padded)):
            yield batch
            batch, tokens = [], 0
        if not batch:
            widest = length(item)
        tokens += length(item)
        batch.append(item)
    if batch:
        yield batch
