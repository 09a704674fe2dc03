"""Episodes -> what each rank learns from: our advantages, selection and weights in OpenRLHF's pipeline.

OpenRLHF scores the sequences (its actor, its reference) and sends the result to the ranks. In
between, the whole update is one pool, as on one machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from paw_train.algorithms.estimator import advantage_estimator
from paw_train.algorithms.experience import Signals, prepare
from paw_train.algorithms.pool import Pool, collect
from paw_train.algorithms.update import schedule_share, update_seed
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.observation_filter import leave_out
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.rows import trimmed
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import TokenRow, micro_batches
from paw_train.settings import Settings
from paw_train.training.openrlhf.learning import RankMicroBatch, idle_row, shard_update


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
        """One experience for each micro-batch, all of rank 0 first, then of rank 1, ..."""
        s = self.run
        pool, signals, metrics = self.scored_pool([sample.labels[0] for sample in rollout_samples])
        chat = ChatFormat(self.tokenizer)
        prepared = prepare(
            pool, s.algorithm, s.objective, s.world_model, self.max_return, signals, chat.ask
        )
        shards = shard_update(
            prepared.rows,
            s.optimizer,
            s.openrlhf.ranks,
            update_seed(s.seed, self.update),
            self.tokenizer.pad_token_id,
        )
        self.metrics = {
            **prepared.metrics,
            **metrics,
            "tokens": float(sum(len(row.ids) for row in prepared.rows)),
            "transitions": float(len(prepared.entropy)),
        }
        rate = s.optimizer.lr * schedule_share(s.optimizer, self.update, s.updates)
        reward = float(pool.returns.mean())
        info = {"rate": rate, "reward": reward, "update": self.update}
        return [_for_rank(part, info) for part in itertools.chain.from_iterable(shards)]

    def scored_pool(self, episodes: Sequence[Trajectory]) -> tuple[Pool, Signals, dict[str, float]]:
        """The pool of some episodes, what OpenRLHF's models say of it, and metrics.

        With the log-probabilities of the actor and the reference that the settings ask for.
        """
        s, signals = self.run, Signals()
        pool = collect(leave_out(episodes, self.tokenizer, s.world_model))
        actor, reference, values = (
            None if found is None else pool.at_actions(found) for found in self._scored(pool.rows)
        )
        assert actor is not None
        rows = pool.rows
        metrics = {"logprob_gap": (actor - pool.logprob).abs().double().mean().item()}
        if s.openrlhf.old_logprobs == "actor":
            rows = [replace(r, logprob=p) for r, p in zip(rows, pool.by_row(actor), strict=True)]
        if reference is not None:
            if s.objective.kl_in == "reward":
                signals.kl = replace(pool, rows=rows).logprob - reference
            else:
                known = pool.by_row(reference)
                rows = [replace(r, ref_logprob=p) for r, p in zip(rows, known, strict=True)]
        signals.values = values
        return replace(pool, rows=rows), signals, metrics

    def _scored(self, rows: Sequence[TokenRow]) -> tuple[list[Tensor] | None, ...]:
        """For each row [T] up to its last action, by OpenRLHF's models that there are.

        Log-probabilities by the actor and the reference, and the critic's values before each token.
        """
        short = [trimmed(row) for row in rows]
        batches = list(micro_batches(short, self.run.optimizer.micro_batch_tokens))
        ranks = self.run.openrlhf.ranks
        # every rank runs the same number of forward passes, or ZeRO-3 would wait for ever
        batches += [[]] * (-len(batches) % ranks)
        ordered = [batch for rank in range(ranks) for batch in batches[rank::ranks]]
        pad = self.tokenizer.pad_token_id
        scored = super().make_experience(
            [_to_score([short[i] for i in part] or [idle_row(short[0])], pad) for part in ordered]
        )

        def by_row(name: str) -> list[Tensor]:
            """For each row, [T] with what belongs to token t at t, from OpenRLHF's [T - 1]."""
            found: list[Tensor] = [torch.zeros(0)] * len(rows)
            for part, result in zip(ordered, scored, strict=True):
                for i, values in zip(part, getattr(result, name), strict=False):
                    aligned = torch.nn.functional.pad(values.float(), (1, 0))
                    found[i] = aligned[: len(short[i].ids)].cpu()  # without padding
            return found

        has_critic = advantage_estimator(self.run.algorithm.name).needs_critic
        return (
            by_row("action_log_probs"),
            None if self.initial_model_group is None else by_row("base_action_log_probs"),
            by_row("values") if has_critic else None,
        )


def _to_score(rows: Sequence[TokenRow], pad: int) -> OpenRLHFExperience:
    batch = collate(rows, pad)
    return OpenRLHFExperience(
        sequences=batch.ids,
        attention_mask=batch.attention_mask,
        action_mask=batch.attention_mask[:, 1:].clone(),
        rewards=torch.zeros(len(rows)),
        index=list(range(len(rows))),
        info={},
    )


def _for_rank(part: RankMicroBatch, info: dict[str, float]) -> OpenRLHFExperience:
    tensors = {name: torch.tensor([value]) for name, value in info.items()}
    return OpenRLHFExperience(sequences=part.batch.ids[:1], labels=[part], info=tensors)
