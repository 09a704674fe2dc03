"""Episodes -> what each rank learns from: our advantages, selection and weights in OpenRLHF's pipeline.

OpenRLHF scores the sequences (its actor, its reference) and sends the result to the ranks. In
between, the whole update is one pool, as on one machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from paw_train.algorithms.estimator import advantage_estimator
from paw_train.algorithms.experience import Pool, Signals, collect, prepare, sampled_entropy
from paw_train.algorithms.update import scheduled_rate, update_seed
from paw_train.losses.objective import truncated_importance
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.observation_filter import leave_out
from paw_train.rollouts.rows import trimmed
from paw_train.rollouts.tokens import TokenRow, micro_batches
from paw_train.settings import Settings
from paw_train.training.openrlhf.sharding import RankMicroBatch, idle_row, shard_update


@dataclass(slots=True)
class Scores:
    """The scores of each row by OpenRLHF's models: tensors [T], one number for each token."""

    actor: list[Tensor]
    """log-probabilities at the rollout's temperature"""
    reference: list[Tensor] | None
    """the same by the reference; ``None`` without one"""
    values: list[Tensor] | None
    """the critic's values before each token; ``None`` without one"""


class PaWExperienceMaker(RemoteExperienceMaker):
    """Turns the samples of an update into the micro-batches of each rank.

    ``run`` has to be set before use, ``update`` before every update.
    """

    run: Settings
    max_return: float
    update: int = 0
    metrics: dict[str, float]

    @torch.no_grad()
    def make_experience_batch(
        self, rollout_samples: Sequence[OpenRLHFExperience]
    ) -> list[OpenRLHFExperience]:
        """One experience for each micro-batch, all of rank 0 first, then of rank 1, ...

        Raises:
            ValueError: every episode of the update failed.
        """
        s = self.run
        episodes = [sample.labels[0] for sample in rollout_samples]
        leave_out(episodes, self.tokenizer, s.world_model)
        pool = collect(episodes)
        scores = self._scored(pool.rows)
        reference = scores.reference
        signals = Signals()
        if s.openrlhf.max_staleness:
            # of the policy that sampled: -log p estimates an entropy only of tokens that p has sampled
            signals.sampled_entropy = sampled_entropy(pool)
        weights = _weigh(pool, scores.actor, s.openrlhf.importance_truncation)
        gap = _take_over(pool, scores.actor, s.openrlhf.old_logprobs == "actor")
        if s.objective.kl_in == "reward" and reference is not None:
            signals.kl = _log_ratios(pool, reference)
        if scores.values is not None:
            signals.values = _values(pool, scores.values, s.algorithm.level)
        chat = ChatFormat(self.tokenizer)
        experience = prepare(
            pool, s.algorithm, s.objective, s.world_model, self.max_return, signals, chat.ask
        )
        in_loss = s.objective.kl_in == "loss" and reference is not None
        shards = shard_update(
            experience,
            reference if in_loss else None,
            s.optimizer,
            s.openrlhf.ranks,
            update_seed(s.seed, self.update),
            s.algorithm.level,
        )
        self.metrics = {
            **experience.metrics,
            "logprob_gap": gap,
            **weights,
            "tokens": float(sum(len(row.ids) for row in experience.rows)),
            "transitions": float(len(experience.advantages)),
        }
        rate = scheduled_rate(s.optimizer, self.update, s.updates)
        reward = float(pool.per_episode(pool.rewards).mean())
        info = {"rate": rate, "reward": reward, "update": self.update}
        return [_for_rank(part, info) for part in itertools.chain.from_iterable(shards)]

    def _scored(self, rows: Sequence[TokenRow]) -> Scores:
        """Scores of rows by the actor, the reference and the critic, each up to its last action."""
        short = [trimmed(row, [False] * len(row.steps)) for row in rows]
        place = {id(row): i for i, row in enumerate(short)}
        batches = list(micro_batches(short, self.run.optimizer.micro_batch_tokens))
        ranks = self.run.openrlhf.ranks
        # every rank runs equally many forward passes, or ZeRO-3 would wait for ever
        batches += [[idle_row(short[0])] for _ in range(-len(batches) % ranks)]
        ordered = [batch for rank in range(ranks) for batch in batches[rank::ranks]]
        pad = self.tokenizer.pad_token_id
        scored = super().make_experience([_to_score(batch, pad) for batch in ordered])

        def by_row(name: str) -> list[Tensor]:
            found: list[Tensor] = [torch.zeros(0)] * len(rows)
            for batch, result in zip(ordered, scored, strict=True):
                for b, row in enumerate(batch):
                    if id(row) in place:
                        found[place[id(row)]] = _aligned(getattr(result, name)[b])
            return found

        has_critic = advantage_estimator(self.run.algorithm.name).needs_critic
        return Scores(
            by_row("action_log_probs"),
            None if self.initial_model_group is None else by_row("base_action_log_probs"),
            by_row("values") if has_critic else None,
        )


def _to_score(rows: Sequence[TokenRow], pad: int) -> OpenRLHFExperience:
    """A batch whose every token is scored."""
    width = max(2, *(len(row.ids) for row in rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.tensor(row.ids)
        attention[b, : len(row.ids)] = 1
    return OpenRLHFExperience(
        sequences=ids,
        attention_mask=attention,
        action_mask=attention[:, 1:].clone(),
        rewards=torch.zeros(len(rows)),
        index=list(range(len(rows))),
        info={},
    )


def _aligned(values: Tensor) -> Tensor:
    """[T] with what belongs to token t at t, from OpenRLHF's [T - 1]."""
    return torch.nn.functional.pad(values.float(), (1, 0))


def _weigh(pool: Pool, actor: Sequence[Tensor], cap: float | None) -> dict[str, float]:
    """Gives the actions importance weights: the actor's probability over that at sampling, truncated.

    Args:
        pool: steps hold the log-probabilities at sampling.
        actor: those of each row's tokens at the start of the update.
        cap: largest weight; ``None``: no weights.

    Returns:
        Metrics.
    """
    if cap is None:
        return {}
    weights = []
    for row, values in zip(pool.rows, actor, strict=True):
        for step in row.steps:
            old = values[slice(*step.action)].cpu()[None]
            sampled = torch.tensor(step.logprobs)[None]
            own = truncated_importance(old, sampled, torch.ones_like(old, dtype=torch.bool), cap)
            step.importance = own[0].tolist()
            weights.append(own[0])
    all_weights = torch.cat(weights)
    return {
        "importance_mean": all_weights.mean().item(),
        "importance_min": all_weights.min().item(),
        "importance_capped": (all_weights >= cap).float().mean().item(),
    }


def _take_over(pool: Pool, actor: Sequence[Tensor], replace: bool) -> float:
    """Compares the sampled tokens' log-probabilities with the actor's, and puts the actor's in place.

    Returns:
        The mean absolute difference in nats per token: the mismatch of the two engines.
    """
    difference, count = 0.0, 0
    for row, values in zip(pool.rows, actor, strict=True):
        for step in row.steps:
            found = values[slice(*step.action)].tolist()
            difference += sum(abs(a - b) for a, b in zip(found, step.logprobs, strict=True))
            count += len(found)
            if replace:
                step.logprobs = found
    return difference / max(count, 1)


def _log_ratios(pool: Pool, reference: Sequence[Tensor]) -> Tensor:
    """[N, A] log-ratio of each token of the responses to the reference."""
    longest = max(step.action[1] - step.action[0] for step in pool.steps)
    result = torch.zeros(len(pool.steps), longest)
    for row, values in zip(pool.rows, reference, strict=True):
        for step in row.steps:
            known = torch.tensor(step.logprobs) - values[slice(*step.action)].cpu()
            result[step.index, : len(known)] = known
    return result


def _values(pool: Pool, values: Sequence[Tensor], level: str) -> Tensor:
    """[N, A] the values before each action token; at turn level before the first alone."""
    longest = max(step.action[1] - step.action[0] for step in pool.steps)
    result = torch.zeros(len(pool.steps), longest if level == "token" else 1)
    for row, known in zip(pool.rows, values, strict=True):
        for step in row.steps:
            start, end = step.action
            own = known[start : end if level == "token" else start + 1]
            result[step.index, : len(own)] = own
    return result


def _for_rank(part: RankMicroBatch, info: dict[str, float]) -> OpenRLHFExperience:
    row = part.experience.rows[0]
    tensors = {name: torch.tensor([value]) for name, value in info.items()}
    return OpenRLHFExperience(sequences=torch.tensor([row.ids]), labels=[part], info=tensors)
