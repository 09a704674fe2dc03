"""The placebo of the world-model term: observations that say nothing about the actions before them.

A gain that remains with it comes from regularisation or from more tokens, not from what observations say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paw_train.rollouts.tokens import ACTION, TokenRow


def with_placebo(rows: Sequence[TokenRow], seed: int) -> list[TokenRow]:
    """Rows with ``placebo_ids``: each observation is another transition's with as many supervised tokens.

    Rows with equally many such tokens take their observations from one another in a random circle, so none
    keeps its own. A row without a partner keeps its own, and loses its weight.

    Args:
        rows: of ``prepare``, one transition each.
        seed: of the circle.

    Raises:
        ValueError: actions follow an observation in a row: replacing it would change what they answer.
    """
    alike: dict[int, list[int]] = {}
    places = [[t for t, weight in enumerate(row.wm_weight or ()) if weight] for row in rows]
    for number, own in enumerate(places):
        if own and ACTION in rows[number].role[own[0] :]:
            raise ValueError(
                "world_model.placebo needs rows of one transition each, whose observation comes last: use "
                "env.mode=window."
            )
        alike.setdefault(len(own), []).append(number)
    rng = np.random.default_rng(seed)
    found = [replace(row, placebo_ids=row.ids) for row in rows]
    for count, numbers in alike.items():
        circle = rng.permutation(numbers).tolist()
        for taker, giver in zip(circle, [*circle[1:], circle[0]], strict=True):
            ids = list(rows[taker].ids)
            for there, here in zip(places[taker], places[giver], strict=True):
                ids[there] = rows[giver].ids[here]
            found[taker] = replace(found[taker], placebo_ids=ids)
            if count and len(circle) == 1:
                found[taker] = replace(found[taker], wm_weight=[0.0] * len(ids))
    return found
