"""Token rows from where actions and observations lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow

Span = tuple[int, int]


def token_row(
    ids: Sequence[int], *turns: tuple[Span, Span], logprob: float = -1.0, **columns: Any
) -> TokenRow:
    """A row with an action and an observation, [start, end), for each of its transitions.

    Args:
        turns: the spans of each transition, in order; an empty span for nothing.
        logprob: of each action token.
        columns: further lists of the row.
    """
    row = TokenRow(list(ids), **columns)
    for turn, spans in enumerate(turns):
        for role, (start, end) in zip((ACTION, OBSERVATION), spans, strict=True):
            row.role[start:end] = [role] * (end - start)
            row.turn[start:end] = [turn] * (end - start)
            if role == ACTION:
                row.logprob[start:end] = [logprob] * (end - start)
    return row


def parts(row: TokenRow, role: int) -> list[list[int]]:
    """The ids of the tokens with a role, by transition, in order."""
    return [[row.ids[place] for place in places] for places in row.places(role).values()]


def transitions(rows: Sequence[TokenRow]) -> list[tuple[TokenRow, list[int], list[int]]]:
    """The row, and the places of action and observation, of each transition, in order."""
    found = []
    for row in rows:
        actions, observations = row.places(ACTION), row.places(OBSERVATION)
        found += [(row, actions[turn], observations.get(turn, [])) for turn in actions]
    return found
