"""The local engine behind ``protocol.Trainer``: its pool, its experience and its updater."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paw_train.algorithms.experience import Prepared, collect, prepare
from paw_train.algorithms.update import Updater
from paw_train.conformance.engines.layout import (
    ALGORITHM,
    max_return,
    objective_settings,
    outcome_of,
    protocol_rows,
    token_rows,
    trajectories,
    world_model_settings,
)
from paw_train.conformance.engines.shared_loss import planted
from paw_train.conformance.protocol import Outcome, Planting, Row
from paw_train.conformance.recording import Objective, Recording
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.reference import CopyReference
from paw_train.settings import OptimizerSettings

MICRO_BATCH_TOKENS = 1500
"""several micro-batches for the recorded rows"""


class LocalTrainer:
    """``paw train`` with ``engine=local``."""

    objectives: Sequence[str] = ("policy", "world_model")

    def token_batch(self, recording: Recording, objective: Objective) -> list[Row]:
        """The rows of ``append_transition``, as a rollout writes them."""
        return protocol_rows(collect(trajectories(recording, objective)).rows)

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        return _prepared(recording, objective).advantages

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        return _prepared(recording, objective).plan.weights

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[Row],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """One step of ``Updater`` at learning rate 0."""
        policy = LocalPolicy(recording.model("policy"), recording.tokenizer)
        reference = LocalPolicy(recording.model("reference"), recording.tokenizer)
        updater = Updater(
            policy,
            CopyReference(reference, offloaded=False),
            OptimizerSettings(
                lr=0.0, max_grad_norm=1e9, micro_batch_tokens=MICRO_BATCH_TOKENS, minibatches=1
            ),
            objective_settings(objective),
            world_model_settings(objective),
            objective.temperature,
            updates=1,
        )
        metrics = updater.step(token_rows(rows, advantages, weights), update=0, seed=0)
        gradients = {
            name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None
        }
        return outcome_of(metrics, gradients, objective)

    def plant(self, fault: str) -> Planting:
        """In the code that both engines share."""
        found: Planting = planted(fault)
        return found


def _prepared(recording: Recording, objective: Objective) -> Prepared:
    return prepare(
        collect(trajectories(recording, objective)),
        ALGORITHM,
        objective_settings(objective),
        world_model_settings(objective),
        max_return(objective),
    )
