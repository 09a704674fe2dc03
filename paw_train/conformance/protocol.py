"""The protocol that a trainer implements to be checked: four methods, from the recording to gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from paw_train.conformance.recording import Objective, Outcome, Recording, Role


@dataclass(frozen=True)
class Row:
    """One sequence of T tokens as the trainer's model reads it, without padding."""

    ids: list[int]
    """[T]"""
    roles: list[Role]
    """[T] ``action``: the policy loss reads the token; ``env_output``: the world-model loss may; else
    ``prompt``"""
    transitions: list[int]
    """[T] number of the transition that an action or an observation belongs to (``Turn.number``); -1 for
    prompts"""
    logprobs: list[float]
    """[T] log-probability of each action token when it was sampled, in nats; 0 elsewhere"""


@runtime_checkable
class Trainer(Protocol):
    """A trainer under test. Its class is called without arguments.

    A trainer may also have ``plant(fault: str) -> AbstractContextManager | None``: a context in which the
    trainer's own code has the named fault; or ``None``, and the suite plants it at the borders between these
    methods, if it can.
    """

    objectives: Sequence[str]
    """the objectives in ``recording.OBJECTIVES`` that it trains"""

    def token_batch(self, recording: Recording, objective: Objective) -> list[Row]:
        """The rows that the trainer makes from the episodes, in any order and number."""

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        """[N] advantage of each transition."""

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        """[N] the w_i of Eq. 11, without ``coef``; zeros for the objective without a world model."""

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[Row],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """Losses and gradients of the rows, for one optimiser step in more than one micro-batch."""
