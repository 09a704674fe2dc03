"""The filter of observations: which of their tokens the world-model loss does not read.

Echoes of the action and matches of regular expressions are found in an observation's text, and the tokens
that they cover by the text of each token: nothing is tokenised again. Warnings, which concern whole
transitions, are left out by ``paw_train.algorithms.selection.plan_update``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import CONTEXT, OBSERVATION, Span, TokenRow
from paw_train.settings.world_model import WorldModelSettings


def leave_out(
    trajectories: Sequence[Trajectory], tokenizer: Any, settings: WorldModelSettings
) -> list[Trajectory]:
    """The trajectories, with the observation tokens that the settings leave out made context."""
    if not settings.filters_tokens:
        return list(trajectories)

    def changed(row: TokenRow, trajectory: Trajectory) -> TokenRow:
        role = list(row.role)
        for turn, places in row.places(OBSERVATION).items():
            ids = [row.ids[place] for place in places]
            action = trajectory.episode.transitions[turn].action
            for start, end in filtered(ids, action, tokenizer, settings):
                for place in places[start:end]:
                    role[place] = CONTEXT
        return replace(row, role=role)

    return [replace(t, rows=[changed(row, t) for row in t.rows]) for t in trajectories]


def filtered(
    ids: Sequence[int], action: str, tokenizer: Any, settings: WorldModelSettings
) -> list[Span]:
    """The tokens of an observation that are left out of its loss, as spans in order.

    Args:
        ids: of the observation.
        action: the action that it followed, as given to the environment.
    """
    text, ends = text_of_tokens(ids, tokenizer)
    matches = list(_matches(text, action, settings))
    covered = [
        any(start < last and first < end for start, end in matches)
        for first, last in pairwise([0, *ends])
    ]
    edges = [k for k, (a, b) in enumerate(pairwise([False, *covered, False])) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _matches(text: str, action: str, settings: WorldModelSettings) -> Iterator[Span]:
    """[start, end) in characters of what is left out."""
    patterns = list(settings.filter_patterns)
    if settings.filter_echoes and action.strip():
        patterns.append(rf"(?<!\w){re.escape(action.strip())}(?!\w)")
    for pattern in patterns:
        yield from (match.span() for match in re.finditer(pattern, text) if match[0])


def text_of_tokens(ids: Sequence[int], tokenizer: Any) -> tuple[str, list[int]]:
    """The text of tokens, and where in it each of them ends."""
    text = tokenizer.decode(list(ids))
    pieces = [tokenizer.decode([i]) for i in ids]
    if "".join(pieces) == text:
        return text, list(accumulate(map(len, pieces)))
    # a character of several tokens, or spaces that depend on the neighbours
    return text, [len(tokenizer.decode(list(ids[: k + 1]))) for k in range(len(ids))]
