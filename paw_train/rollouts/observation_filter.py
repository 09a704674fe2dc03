"""The filter of observations: which of their tokens the world-model loss does not read.

Echoes of the action and matches of regular expressions are found in an observation's text, and the tokens
that they cover by the text of each token: nothing is tokenised again. Warnings, which concern whole
transitions, are left out by ``paw_train.algorithms.selection.plan_update``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import CONTEXT, OBSERVATION, TokenRow
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
            for number in filtered(ids, action, tokenizer, settings):
                role[places[number]] = CONTEXT
        return replace(row, role=role)

    return [replace(t, rows=[changed(row, t) for row in t.rows]) for t in trajectories]


def filtered(
    ids: Sequence[int], action: str, tokenizer: Any, settings: WorldModelSettings
) -> list[int]:
    """Numbers of the tokens of an observation that are left out of its loss.

    Args:
        ids: of the observation.
        action: the action that it followed, as given to the environment.
    """
    text = tokenizer.decode(list(ids))
    pieces = [tokenizer.decode([i]) for i in ids]
    if "".join(pieces) == text:
        ends = list(accumulate(map(len, pieces)))
    else:  # a character of several tokens, or spaces that depend on the neighbours
        ends = [len(tokenizer.decode(list(ids[: k + 1]))) for k in range(len(ids))]
    patterns = list(settings.filter_patterns)
    if settings.filter_echoes and action.strip():
        patterns.append(rf"(?<!\w){re.escape(action.strip())}(?!\w)")
    matches = [m.span() for pattern in patterns for m in re.finditer(pattern, text) if m[0]]
    return [
        number
        for number, (first, last) in enumerate(pairwise([0, *ends]))
        if any(start < last and first < end for start, end in matches)
    ]
