"""Transitions as token ids: what one forward pass reads, and where actions and observations lie in it.

A ``TokenRow`` is one sequence. In window mode it is one transition (prompt, response, next
observation), in conversation mode a whole episode; either way every transition is a pair of spans.
Ids are those that were sampled. Text is never tokenised again to find a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Span = tuple[int, int]
"""[start, end) in tokens of a row"""


@dataclass(slots=True)
class StepSpans:
    """Where one transition lies in its row."""

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


@dataclass(frozen=True, slots=True)
class Branch:
    """Part of a packed row that does not follow what stands before it (see ``packing``)."""

    span: Span
    shared: list[Span]
    """what it follows, in order"""


@dataclass(slots=True)
class TokenRow:
    """One sequence of the forward pass."""

    ids: list[int] = field(default_factory=list)
    steps: list[StepSpans] = field(default_factory=list)
    prompt_tokens_cut: int = 0
    """tokens of a window-mode prompt that were left out to stay within the context limit"""
    branches: list[Branch] = field(default_factory=list)
    """of a packed row, in order"""

    def extend(self, ids: Sequence[int]) -> tuple[int, int]:
        """Appends ids and returns their span."""
        start = len(self.ids)
        self.ids.extend(ids)
        return start, len(self.ids)


@dataclass(slots=True)
class TokenBatch:
    """Padded rows and, for each transition in them, where to find its tokens.

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
    positions: Tensor | None = None
    """[B, T] position of each token in its dialogue, where a row is packed; else as the columns"""
    visible: Tensor | None = None
    """[B, 1, T, T] bool: which tokens (last axis) each token sees, where a row is packed; else those up
    to itself"""
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
            positions=None if self.positions is None else self.positions[:, :end],
            visible=None if self.visible is None else self.visible[..., :end, :end],
            column=torch.where(self.action_mask, self.column, 0),
            observation_mask=torch.zeros_like(self.observation_mask),
            horizon=torch.zeros_like(self.horizon),
        )

    def to(self, device: torch.device) -> TokenBatch:
        """The batch on another device."""
        tensors = {name: getattr(self, name) for name in self.__slots__}
        return replace(self, **{n: t.to(device) for n, t in tensors.items() if t is not None})


def collate(rows: Sequence[TokenRow], pad_id: int) -> TokenBatch:
    """Pads rows on the right and lays out the spans of their transitions."""
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.tensor(row.ids)
        attention[b, : len(row.ids)] = 1
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
        *_branched(rows, width),
        importance if any(step.importance for _, step in steps) else None,
    )


def _branched(rows: Sequence[TokenRow], width: int) -> tuple[Tensor | None, Tensor | None]:
    """(positions [B, T], visible [B, 1, T, T]) of rows of which some are packed; else neither."""
    if not any(row.branches for row in rows):
        return None, None
    positions = torch.arange(width).repeat(len(rows), 1)
    visible = torch.ones((width, width), dtype=torch.bool).tril().repeat(len(rows), 1, 1)
    for b, row in enumerate(rows):
        for branch in row.branches:
            start, end = branch.span
            visible[b, start:end, :start] = False
            for place in branch.shared:
                visible[b, start:end, slice(*place)] = True
            shared = sum(map(_length, branch.shared))
            positions[b, start:end] = torch.arange(shared, shared + end - start)
    return positions, visible[:, None]


def _length(span: Span) -> int:
    return span[1] - span[0]


def micro_batches(rows: Sequence[TokenRow], token_budget: int) -> Iterator[list[TokenRow]]:
    """Splits rows, longest first, into batches of at most ``token_budget`` padded tokens (one at least)."""
    ordered = sorted(rows, key=lambda row: len(row.ids), reverse=True)
    batch: list[TokenRow] = []
    for row in ordered:
        if batch and len(batch[0].ids) * (len(batch) + 1) > token_budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
