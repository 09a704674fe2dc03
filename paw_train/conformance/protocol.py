"""The protocol that a trainer implements to be checked: four methods, from the recording to gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from paw_train.conformance.recording import Objective, Outcome, Recording
from paw_train.rollouts.tokens import TokenRow


@runtime_checkable
class Trainer(Protocol):
    """A trainer under test. Its class is called without arguments.

    A trainer may also have ``plant(fault: str) -> AbstractContextManager | None``: a context in which the
    trainer's own code has the named fault; or ``None``, and the suite plants it at the borders between these
    methods, if it can.
    """

    objectives: Sequence[str]
    """the objectives in ``recording.OBJECTIVES`` that it trains"""

    def token_batch(self, recording: Recording, objective: Objective) -> list[TokenRow]:
        """The rows that the trainer's model reads, in any order and number, without padding.

        ``ids``, ``role``, ``turn`` and ``logprob`` of each are read. A role says that the policy loss reads a
        token, or that the world-model loss may; the turn is its transition's ``Turn.number``, -1 for context.
        """

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        """[N] advantage of each transition."""

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        """[N] the w_i of Eq. 11, without ``coef``; zeros for the objective without a world model."""

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[TokenRow],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """Losses and gradients of the rows, for one optimiser step in more than one micro-batch."""
