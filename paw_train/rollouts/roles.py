"""The role of each token of a row, by the names of OpenEnv's RFC 010 (pull request 819 there)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paw_train.rollouts.tokens import TokenRow

Role = Literal["prompt", "action", "env_output", "warning"]
"""``action``: sampled by the policy; ``env_output``: of an observation; ``warning``: of the complaint that
follows a response which could not be read; ``prompt``: everything else, the chat template included"""
ROLES: tuple[Role, ...] = ("action", "env_output", "warning")
"""those that have a mask; a token in none of them is of the prompt"""


def token_roles(row: TokenRow, malformed: Sequence[bool]) -> list[Role]:
    """[T] the role of each token.

    Args:
        row: with its steps.
        malformed: for each step, whether its response could not be read.
    """
    roles: list[Role] = ["prompt"] * len(row.ids)
    for step, complaint in zip(row.steps, malformed, strict=True):
        answer: Role = "warning" if complaint else "env_output"
        for t in range(*step.action):
            roles[t] = "action"
        for t in range(*step.observation):
            roles[t] = answer
    return roles


def role_masks(roles: Sequence[Role]) -> dict[str, list[int]]:
    """[T] a mask of 0 and 1 for each of ``ROLES``; no token is in two of them."""
    return {name: [int(role == name) for role in roles] for name in ROLES}
