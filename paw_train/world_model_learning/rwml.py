"""RWML's second stage: GRPO on sampled predictions, rewarded by similarity to the true observation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paw_train.algorithms import grpo
from paw_train.algorithms.update import Updater
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import ACTION, TokenRow
from paw_train.settings import Settings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.world_model_learning.examples import Example
from paw_train.world_model_learning.learner import Learner, stage_optimizer
from paw_train.world_model_learning.predicting import Guess, Similarity, predict


class RWMLLearner(Learner):
    """Learns from the rewards of sampled predictions."""

    def __init__(
        self,
        policy: LocalPolicy,
        examples: Sequence[Example],
        similarity: Similarity,
        settings: Settings,
    ) -> None:
        self.policy, self.examples, self.similarity = policy, examples, similarity
        self.own = settings.world_model_learning.rwml
        objective = settings.objective.replace(
            kl_coef=self.own.kl_coef,
            kl_in="loss",
            policy_coef=1.0,  # RL may run without its policy term; this stage has no other
            entropy_coef=0.0,
            log_observations=False,
        )
        reference = (
            policy.reference(settings.model.reference_offload) if self.own.kl_coef > 0 else None
        )
        updater = Updater(
            policy,
            reference,
            stage_optimizer(settings, self.own.lr, warmup_updates=2, minibatches=2),
            objective,
            WorldModelSettings.preset("off"),
            1.0,
            self.own.updates,
            rate="world_model_learning.rwml.lr",
        )
        super().__init__(settings, updater)

    def update(self, number: int) -> dict[str, Any]:
        own = self.own
        started = time.perf_counter()
        seed = self.seed(number)
        rng = np.random.default_rng(seed)
        count = min(own.transitions, len(self.examples))
        sampled = [self.examples[int(i)] for i in rng.choice(len(self.examples), count, False)]
        guesses = predict(
            self.policy,
            sampled,
            own.group_size,
            own.max_tokens,
            seed,
            self.settings.evaluation.batch,
        )
        predicted = time.perf_counter()
        texts = [guess.text for group in guesses for guess in group]
        truth = [example.text for example in sampled for _ in range(own.group_size)]
        cosines = self.similarity(texts, truth)
        rewarded = time.perf_counter()
        rewards = self.similarity.right(cosines).astype(np.float64)
        rows, metrics = rewarded_rows(sampled, guesses, rewards, skip_equal=own.kl_coef == 0)
        if rows:
            learned = self.updater.step(rows, number, seed)
            metrics |= {name: learned[name] for name in _LOGGED if name in learned}
        if self.updater.reference is not None:
            self.updater.reference.offload()
        return {
            **metrics,
            "similarity": float(cosines.mean()),
            "right_share": float(self.similarity.right(cosines).mean()),
            "exact_share": float(np.mean([a == b for a, b in zip(texts, truth, strict=True)])),
            "complete_share": float(np.mean([g.complete for group in guesses for g in group])),
            "different_share": len(set(texts)) / len(texts),
            "seconds_predict": predicted - started,
            "seconds_embed": rewarded - predicted,
            "seconds_train": time.perf_counter() - rewarded,
        }


_LOGGED = ("policy_loss", "kl", "clip_fraction", "grad_norm", "lr", "skipped")


def rewarded_rows(
    examples: Sequence[Example],
    guesses: Sequence[Sequence[Guess]],
    rewards: np.ndarray,
    skip_equal: bool = False,
) -> tuple[list[TokenRow], dict[str, float]]:
    """Predictions and their rewards as an update reads them: a prediction is the action of its row.

    Args:
        skip_equal: leave out groups whose rewards are all equal: they move nothing but a KL.

    Returns:
        (the rows, none if nothing is left to learn from; metrics)
    """
    each = len(guesses[0])
    groups = torch.arange(len(examples)).repeat_interleave(each)
    returns = torch.as_tensor(rewards, dtype=torch.float64)
    advantages = grpo(returns, groups)
    by_group = returns.reshape(-1, each)
    equal = (by_group == by_group[:, :1]).all(1)
    metrics = {
        "reward_mean": returns.mean().item(),
        "informative_share": 1.0 - equal.double().mean().item(),
    }
    keep = ~(equal & skip_equal).repeat_interleave(each)
    rows: list[TokenRow] = []
    contexts = [example.context for example in examples for _ in range(each)]
    flat = [guess for group in guesses for guess in group]
    worth = zip(contexts, flat, keep.tolist(), advantages.tolist(), strict=True)
    for context, guess, wanted, advantage in worth:
        if wanted:
            row = TokenRow(list(context))
            row.append(guess.response.ids, ACTION, len(rows), guess.response.logprobs)
            row.advantage = [advantage if role == ACTION else 0.0 for role in row.role]
            rows.append(row)
    return rows, metrics
