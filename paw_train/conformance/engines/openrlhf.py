"""The OpenRLHF engine behind ``protocol.Trainer``, in one process: its actor, experience maker and shards.

Ray, vLLM and DeepSpeed do not take part: two ranks learn one after the other, and their gradients are
averaged as DeepSpeed does. Needs OpenRLHF, and on a machine without a GPU something in the place of
flash-attn (``tests/openrlhf/cpu``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from paw_train.conformance.engines.layout import (
    ALGORITHM,
    experience_of,
    max_return,
    objective_settings,
    outcome_of,
    protocol_rows,
    trajectories,
    world_model_settings,
)
from paw_train.conformance.engines.patching import patched
from paw_train.conformance.engines.shared_loss import planted
from paw_train.conformance.protocol import Outcome, Planting, Row
from paw_train.conformance.recording import Objective, Recording
from paw_train.losses.objective import merge_metrics
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import OptimizerSettings, RolloutSettings, Settings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.training.openrlhf import learning
from paw_train.training.openrlhf.chunked_actor import ChunkedActor
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker
from paw_train.training.openrlhf.learning import learn, micro_batch_loss
from paw_train.training.openrlhf.sharding import RankMicroBatch, shard_update

RANKS = 2


class OpenRLHFTrainer:
    """``paw train`` with ``engine=openrlhf``."""

    objectives: Sequence[str] = ("policy", "world_model")

    def token_batch(self, recording: Recording, objective: Objective) -> list[Row]:
        """The rows of the rollouts, with the log-probabilities of OpenRLHF's actor."""
        episodes, _ = _experience(recording, objective)
        return protocol_rows([row for t in episodes for row in t.rows])

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        """Of the experience maker."""
        return _by_transition(*_experience(recording, objective), "advantages")

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        """Of the experience maker."""
        return _by_transition(*_experience(recording, objective), "wm_weights")

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[Row],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """Of ``learn`` on the micro-batches of each rank."""
        actor = _actor(recording, "policy", objective)
        run = _settings(recording, objective)
        experience = experience_of(rows, advantages, weights)
        known = _reference(recording, objective, experience.rows)
        metrics: list[dict[str, Tensor]] = []

        def loss_of(part: RankMicroBatch) -> Any:
            return micro_batch_loss(
                part,
                actor.scores,
                run.objective,
                run.world_model,
                objective.temperature,
                recording.tokenizer.pad_token_id,
                torch.device("cpu"),
            )

        def gathered(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
            metrics.extend(own)
            return own

        for parts in shard_update(experience, known, run.optimizer, RANKS, seed=0):
            learn(parts, loss_of, lambda loss: loss.backward(), lambda: 0.0, gathered, RANKS)
        gradients = {
            name: p.grad / RANKS for name, p in actor.model.named_parameters() if p.grad is not None
        }
        return outcome_of(merge_metrics(metrics), gradients, objective)

    def plant(self, fault: str) -> Planting:
        """In the code that both engines share."""
        found: Planting = planted(fault, learning)
        return found


def _settings(recording: Recording, objective: Objective) -> Settings:
    return Settings(
        engine="openrlhf",
        algorithm=ALGORITHM,
        objective=objective_settings(objective),
        world_model=world_model_settings(objective),
        rollout=RolloutSettings(temperature=objective.temperature, group_size=recording.group_size),
        optimizer=OptimizerSettings(minibatches=1, micro_batch_tokens=1000),
        openrlhf=OpenRLHFSettings(gpus_per_node=RANKS),
    )


def _actor(recording: Recording, weights: str, objective: Objective) -> Any:
    actor = ChunkedActor(recording.model(weights), temperature=objective.temperature)
    actor.packing_samples = False
    return actor.eval()


def _experience(
    recording: Recording, objective: Objective
) -> tuple[list[Trajectory], list[RankMicroBatch]]:
    """The episodes, with the actor's log-probabilities, and the micro-batches of all ranks."""
    sampler = _actor(recording, "sampler", objective)
    reference = _actor(recording, "reference", objective)

    def scored(maker: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            given = batch.sequences, batch.action_mask, batch.attention_mask
            batch.action_log_probs = sampler(*given)
            batch.base_action_log_probs = reference(*given)
        return batches

    maker: Any = PaWExperienceMaker.__new__(
        PaWExperienceMaker
    )  # upstream's starts from Ray's actors
    maker.run, maker.max_return = _settings(recording, objective), max_return(objective)
    maker.tokenizer, maker.initial_model_group = recording.tokenizer, object()
    episodes = trajectories(recording, objective)
    with patched(RemoteExperienceMaker, "make_experience", scored):
        made = maker.make_experience_batch([OpenRLHFExperience(labels=[t]) for t in episodes])
    return episodes, [experience.labels[0] for experience in made]


def _by_transition(
    episodes: Sequence[Trajectory], parts: Sequence[RankMicroBatch], name: str
) -> Tensor:
    """[N] a column of the experience; rows are found again by their tokens."""
    values = {
        tuple(row.ids): [float(getattr(part.experience, name)[step.index]) for step in row.steps]
        for part in parts
        for row in part.experience.rows
    }
    found: list[float] = []
    for trajectory in episodes:
        (whole,) = trajectory.rows
        # what the experience has was truncated somewhere after the last action
        ends = range(whole.steps[-1].action[1], len(whole.ids) + 1)
        found += next(values[key] for end in ends if (key := tuple(whole.ids[:end])) in values)
    return torch.tensor(found)


@torch.no_grad()
def _reference(
    recording: Recording, objective: Objective, rows: Sequence[TokenRow]
) -> list[Tensor]:
    """[T] for each row: log-probabilities of its tokens under the reference."""
    actor = _actor(recording, "reference", objective)
    found = []
    for row in rows:
        ids = torch.tensor([row.ids])
        whole = torch.ones_like(ids)
        scores = actor(ids, whole[:, 1:], whole)[0].float()
        found.append(torch.nn.functional.pad(scores, (1, 0)))
    return found
