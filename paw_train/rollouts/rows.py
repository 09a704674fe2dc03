"""Rows as one update reads them: without what nothing is learned from, with what lies further ahead.

Both are for the world-model term alone. A transition whose next observation is not supervised need
not carry its tokens through the forward pass; one that is supervised several steps ahead carries
the actions and observations that really followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paw_train.rollouts.tokens import Span, TokenRow


def look_ahead(rows: Sequence[TokenRow], horizon: int, ask: Sequence[int]) -> list[TokenRow]:
    """An episode's rows with the spans of `o_{t+2}` to `o_{t+horizon}` beside each `o_{t+1}`.

    In a conversation those tokens are in the row anyway. In window mode, where a row is one
    transition, the later responses and observations are appended to it: the context stays `h_t`.

    Args:
        rows: of one episode, in order; not changed.
        horizon: observations to supervise for each action; 1 gives the rows as they are.
        ask: ids between an observation and the response that follows it.
    """
    if horizon == 1:
        return list(rows)
    if len(rows) == 1:
        return [_within(rows[0], horizon)]
    return [_appended(rows[i : i + horizon], ask) for i in range(len(rows))]


def _within(row: TokenRow, horizon: int) -> TokenRow:
    observations = [step.observation for step in row.steps]
    steps = [
        replace(step, later=observations[i + 1 : i + horizon]) for i, step in enumerate(row.steps)
    ]
    return TokenRow(row.ids, steps)


def _appended(rows: Sequence[TokenRow], ask: Sequence[int]) -> TokenRow:
    """The first row, continued by what the others hold from their response on."""
    first = rows[0]
    if not first.steps:
        return first
    longer = TokenRow(list(first.ids))
    later: list[Span] = []
    for row in rows[1:]:
        if not row.steps:
            break  # the environment failed here
        step = row.steps[0]
        longer.extend(ask)
        shift = len(longer.ids) - step.action[0]
        longer.extend(row.ids[step.action[0] : step.observation[1]])
        later.append((step.observation[0] + shift, step.observation[1] + shift))
    longer.steps = [replace(first.steps[0], later=later)]
    return longer


def trimmed(row: TokenRow, supervised: Sequence[bool]) -> TokenRow:
    """The row without the observations that are not supervised, cut behind the last token in use.

    Args:
        row: not changed.
        supervised: for each of its steps, whether the world-model term reads what follows it.
    """
    steps = [
        step if wanted else replace(step, observation=(step.action[1],) * 2, later=[])
        for step, wanted in zip(row.steps, supervised, strict=True)
    ]
    end = max((span[1] for step in steps for span in step.spans), default=len(row.ids))
    return TokenRow(row.ids[:end], steps)


def transition_keys(rows: Sequence[TokenRow]) -> list[int]:
    """A number for each transition of the rows; equal numbers: equal `(h_t, a_t, o_{t+1})` in tokens."""
    keys = []
    for row in rows:
        running, done = 0, 0
        for step in row.steps:
            start, end = step.action[0], step.observation[1]
            # one pass over a dialogue: each step's key extends that of what came before it
            running = hash((running, *row.ids[done:start]))
            running = hash((running, *row.ids[start:end]))
            keys.append(hash((running, step.action[1] - start)))
            done = end
    return keys
