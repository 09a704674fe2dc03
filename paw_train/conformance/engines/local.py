"""The local engine behind ``protocol.Trainer``: its pool, its experience and its updater."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paw_train.algorithms.experience import Prepared, Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.conformance.engines import shared
from paw_train.conformance.recording import OBJECTIVES, Objective, Outcome, Recording
from paw_train.policies.local.policy import LocalPolicy, Reference
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import OptimizerSettings


class LocalTrainer:
    """``paw train`` with ``engine=local``."""

    objectives: Sequence[str] = tuple(OBJECTIVES)
    plant = staticmethod(shared.planted)

    def token_batch(self, recording: Recording, objective: Objective) -> list[TokenRow]:
        """The rows of ``append_transition``, as a rollout writes them."""
        return collect(shared.trajectories(recording, objective)).rows

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        return _prepared(recording, objective).advantages

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        return _prepared(recording, objective).plan.weights

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[TokenRow],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """One step of ``Updater`` at learning rate 0."""
        run = shared.settings_of(recording, objective)
        policy = LocalPolicy(recording.model("policy"), recording.tokenizer)
        reference = LocalPolicy(recording.model("reference"), recording.tokenizer)
        updater = Updater(
            policy,
            Reference(reference),
            # several micro-batches for the recorded rows
            OptimizerSettings(lr=0.0, max_grad_norm=1e9, micro_batch_tokens=1500, minibatches=1),
            run.objective,
            run.world_model,
            objective.temperature,
            updates=1,
        )
        metrics = updater.step(shared.weighed(rows, advantages, weights), update=0, seed=0)
        gradients = {
            name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None
        }
        return shared.outcome_of(metrics, gradients, objective)


def _prepared(recording: Recording, objective: Objective) -> Prepared:
    run = shared.settings_of(recording, objective)
    pool = collect(shared.trajectories(recording, objective))
    values = torch.tensor([turn.value for turn in recording.turns])[pool.turn]
    return prepare(
        pool,
        run.algorithm,
        run.objective,
        run.world_model,
        shared.max_return(objective),
        Signals(values=values),
    )
