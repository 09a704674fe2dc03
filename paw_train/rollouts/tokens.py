"""Transitions as token ids: what one forward pass reads, and the role of every token in it.

A ``TokenRow`` is one sequence. In window mode it is one transition (prompt, response, next observation), in
conversation mode a whole episode. Ids are those that were sampled. Text is never tokenised again to find a
role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

T = TypeVar("T")
_MOST_PADDING = 0.05
"""share of padding beyond which a micro-batch ends"""
_PASS = 256
"""tokens that cost about as much as one more forward and backward pass"""

CONTEXT, ACTION, OBSERVATION = 0, 1, 2
"""roles of a token: read only; sampled by the policy; of the observation that followed"""


@dataclass(slots=True)
class TokenRow:
    """One sequence of T tokens; every list has one entry per token.

    The lists up to ``logprob`` are the rollout's. Ids that are given alone are context.
    """

    ids: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    """``CONTEXT``, ``ACTION`` or ``OBSERVATION``"""
    turn: list[int] = field(default_factory=list)
    """number of the transition that a token belongs to, among its episode's own or in the update's pool; -1:
    none. A token of an observation that no loss may read has a turn and is context"""
    logprob: list[float] = field(default_factory=list)
    """of each action token when it was sampled, in nats; 0 elsewhere"""
    advantage: list[float] | None = None
    """factor of each action token's surrogate"""
    wm_weight: list[float] | None = None
    """factor of each token's world-model loss, for the whole update (Eq. 8, 10, 11)"""
    placebo_ids: list[int] | None = None
    """``ids`` with another transition's observation (``world_model.placebo``)"""
    value_target: list[float] | None = None
    """what a critic is to predict before an action token"""
    ref_logprob: list[float] | None = None
    """of each action token under the reference policy, in nats"""
    prompt_tokens_cut: int = 0
    """tokens of a window-mode prompt that were left out to stay within the context limit"""

    def __post_init__(self) -> None:
        if not self.role:
            count = len(self.ids)
            self.role, self.turn, self.logprob = [CONTEXT] * count, [-1] * count, [0.0] * count

    def columns(self) -> dict[str, list[float]]:
        """The lists that the row has, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: values for name, values in found.items() if isinstance(values, list)}

    def append(
        self,
        ids: Sequence[int],
        role: int = CONTEXT,
        turn: int = -1,
        logprob: Sequence[float] | None = None,
    ) -> None:
        """Appends tokens, in place; the row's other lists are 0 for them."""
        count = len(ids)
        new = {"ids": ids, "role": [role] * count, "turn": [turn] * count, "logprob": logprob}
        for name, values in self.columns().items():
            values.extend(new.get(name) or [0.0] * count)

    def cut(self, end: int) -> TokenRow:
        """A copy with the first ``end`` tokens."""
        return replace(self, **{name: values[:end] for name, values in self.columns().items()})  # type: ignore[arg-type]

    def numbered(self, first: int) -> TokenRow:
        """A copy whose transitions are numbered from ``first`` instead of 0."""
        return replace(self, turn=[turn if turn < 0 else first + turn for turn in self.turn])

    def places(self, role: int) -> dict[int, list[int]]:
        """Places of the tokens with a role, by turn, in order."""
        found: dict[int, list[int]] = {}
        start = self.role.index(role) if role in self.role else len(self.role)
        for place in range(start, len(self.role)):
            if self.role[place] == role:
                found.setdefault(self.turn[place], []).append(place)
        return found


Role = Literal["prompt", "action", "env_output", "warning"]
"""``action``: sampled by the policy; ``env_output``: of an observation; ``warning``: of the complaint that
follows a response which could not be read; ``prompt``: everything else, the chat template included. These are
the names of OpenEnv's RFC 010 (pull request 819 there)"""
ROLES: tuple[Role, ...] = ("action", "env_output", "warning")
"""those that have a mask; a token in none of them belongs to the prompt"""


def token_roles(row: TokenRow, malformed: Sequence[bool]) -> list[Role]:
    """[T] the role of each token; ``malformed`` says of each turn if its response could not be read."""

    def name(role: int, turn: int) -> Role:
        if role == OBSERVATION:
            return "warning" if malformed[turn] else "env_output"
        return "action" if role == ACTION else "prompt"

    return [name(role, turn) for role, turn in zip(row.role, row.turn, strict=True)]


def micro_batches(rows: Sequence[TokenRow], token_budget: int) -> Iterator[list[int]]:
    """Numbers of the rows, longest first, in batches of at most ``token_budget`` padded tokens or one row."""
    lengths = [len(row.ids) for row in rows]
    return batches_alike(range(len(rows)), lengths.__getitem__, token_budget, _PASS, _MOST_PADDING)


def batches_alike(
    items: Iterable[T], length: Callable[[T], int], most: int, few: int, share: float
) -> Iterator[list[T]]:
    """Batches of items of about equal length, longest first.

    Args:
        most: padded tokens of a batch that has more than one item.
        few: padding that is still cheaper than one more pass, in tokens.
        share: the same, as a share of the padded tokens; the larger of the two counts.
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
