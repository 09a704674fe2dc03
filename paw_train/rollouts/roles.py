"""The role of each token of a row, under the names of OpenEnv's RFC 010 (pull request 819 there)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow

Role = Literal["prompt", "action", "env_output", "warning"]
"""``action``: sampled by the policy; ``env_output``: of an observation; ``warning``: of the complaint that
follows a response which could not be read; ``prompt``: everything else, the chat template included"""
ROLES: tuple[Role, ...] = ("action", "env_output", "warning")
"""those that have a mask; a token in none of them belongs to the prompt"""


def token_roles(row: TokenRow, malformed: Sequence[bool]) -> list[Role]:
    """[T] the role of each token.

    Args:
        row: of an episode.
        malformed: for each turn, whether its response could not be read.
    """

    def name(role: int, turn: int) -> Role:
        if role == OBSERVATION:
            return "warning" if malformed[turn] else "env_output"
        return "action" if role == ACTION else "prompt"

    return [name(role, turn) for role, turn in zip(row.role, row.turn, strict=True)]


def role_masks(roles: Sequence[Role]) -> dict[str, list[int]]:
    """[T] a mask of 0 and 1 for each of ``ROLES``; no token is in two of them."""
    return {name: [int(role == name) for role in roles] for name in ROLES}
