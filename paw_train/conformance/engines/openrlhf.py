"""The OpenRLHF engine behind ``protocol.Trainer``, in one process: its actor, experience maker and shards.

Ray, vLLM and DeepSpeed are not involved: two ranks learn one after the other, and their gradients are
averaged as by DeepSpeed. Needs OpenRLHF and, on a machine without a GPU, a replacement for flash-attn
(``tests/openrlhf/cpu``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from paw_train.algorithms.pool import Pool
from paw_train.conformance.engines import shared
from paw_train.conformance.recording import OBJECTIVES, Objective, Outcome, Recording
from paw_train.losses.objective import merge_metrics
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import OptimizerSettings, Settings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.training.openrlhf.chunked_actor import ChunkedActor
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker
from paw_train.training.openrlhf.learning import (
    RankMicroBatch,
    learn,
    micro_batch_loss,
    shard_update,
)

RANKS = 2


class OpenRLHFTrainer:
    """``paw train`` with ``engine=openrlhf``."""

    objectives: Sequence[str] = tuple(OBJECTIVES)
    plant = staticmethod(shared.planted)

    def token_batch(self, recording: Recording, objective: Objective) -> list[TokenRow]:
        """The rows of the rollouts, with the log-probabilities of OpenRLHF's actor."""
        with _maker(recording, objective) as maker:
            pool: Pool = maker.scored_pool(shared.trajectories(recording, objective))[0]
        return pool.rows

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        found = torch.zeros(len(recording.turns))
        for batch in _batches(recording, objective):
            found[batch.turn[batch.action]] = batch.advantage[batch.action]
        return found

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        found = torch.zeros(len(recording.turns))
        for batch in _batches(recording, objective):
            seen = batch.observation
            found.index_add_(0, batch.turn[seen], batch.wm_weight[seen])
        return found

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[TokenRow],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """The result of ``learn`` on the micro-batches of each rank."""
        actor = _actor(recording, "policy", objective)
        run = _settings(recording, objective)
        worth = shared.weighed(rows, advantages, weights)
        known = _with_reference(recording, objective, worth)
        pad_id = recording.tokenizer.pad_token_id
        metrics: list[dict[str, Tensor]] = []

        def loss_of(part: RankMicroBatch) -> Any:
            return micro_batch_loss(
                part,
                actor.scores,
                run.objective,
                run.world_model,
                objective.temperature,
                torch.device("cpu"),
            )

        def gathered(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
            metrics.extend(own)
            return own

        for parts in shard_update(known, run.optimizer, RANKS, 0, pad_id):
            learn(parts, loss_of, lambda loss: loss.backward(), lambda: 0.0, gathered, RANKS)
        gradients = {
            name: p.grad / RANKS for name, p in actor.model.named_parameters() if p.grad is not None
        }
        return shared.outcome_of(merge_metrics(metrics), gradients, objective)


def _settings(recording: Recording, objective: Objective) -> Settings:
    return shared.settings_of(
        recording,
        objective,
        engine="openrlhf",
        optimizer=OptimizerSettings(minibatches=1, micro_batch_tokens=1000),
        openrlhf=OpenRLHFSettings(gpus_per_node=RANKS),
    )


def _actor(recording: Recording, weights: str, objective: Objective) -> Any:
    actor = ChunkedActor(recording.model(weights), temperature=objective.temperature)
    actor.packing_samples = False
    return actor.eval()


@contextmanager
def _maker(recording: Recording, objective: Objective) -> Iterator[Any]:
    """An experience maker whose rows are scored in this process."""
    sampler = _actor(recording, "sampler", objective)
    reference = _actor(recording, "reference", objective)

    def scored(maker: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            given = batch.sequences, batch.action_mask, batch.attention_mask
            batch.action_log_probs = sampler(*given)
            batch.base_action_log_probs = reference(*given)
            rows = batch.sequences.tolist()
            batch.values = torch.stack([_values(recording, ids) for ids in rows])
        return batches

    # upstream's constructor needs Ray's actors
    maker: Any = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return = _settings(recording, objective), shared.max_return(objective)
    maker.tokenizer, maker.initial_model_group = recording.tokenizer, object()
    with torch.no_grad(), patch.object(RemoteExperienceMaker, "make_experience", scored):
        yield maker


def _values(recording: Recording, ids: Sequence[int]) -> Tensor:
    """[T - 1] PPO's values before each token of a scored row; 0 except at its actions."""
    found = torch.zeros(len(ids) - 1)
    for episode in recording.episodes:
        end = episode.turns[-1].action_tokens[1]
        for turn in episode.turns if episode.ids[:end] == ids[:end] else ():
            start, after = turn.action_tokens
            found[start - 1 : after - 1] = turn.value
    return found


def _batches(recording: Recording, objective: Objective) -> list[Any]:
    samples = [OpenRLHFExperience(labels=[t]) for t in shared.trajectories(recording, objective)]
    with _maker(recording, objective) as maker:
        made = maker.make_experience_batch(samples)
    return [experience.labels[0].batch for experience in made]


@torch.no_grad()
def _with_reference(
    recording: Recording, objective: Objective, rows: Sequence[TokenRow]
) -> list[TokenRow]:
    """Rows with the reference's log-probabilities of their tokens."""
    actor = _actor(recording, "reference", objective)
    found = []
    for row in rows:
        ids = torch.tensor([row.ids])
        whole = torch.ones_like(ids)
        scores = actor(ids, whole[:, 1:], whole)[0].float()
        found.append(replace(row, ref_logprob=[0.0, *scores.tolist()]))
    return found
