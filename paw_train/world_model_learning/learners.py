"""The second stage's two ways of learning, one update at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paw_train.algorithms import grpo
from paw_train.algorithms.update import Updater, update_seed
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import ACTION, TokenRow
from paw_train.settings import OptimizerSettings, Settings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.world_model_learning.predicting import Example, Guess, Similarity, packed, predict

_LOGGED_SFT = {
    "nll_per_token": "obs_nll",
    "loss": "wm_loss",
    **{name: name for name in ("grad_norm", "lr", "skipped")},
}
"""metrics of an update of ``sft`` and ``iwm``, and the names that an updater gives them"""
_LOGGED_RWML = ("policy_loss", "kl", "clip_fraction", "grad_norm", "lr", "skipped")


def _optimizer(
    settings: Settings, lr: float, warmup_updates: int, minibatches: int
) -> OptimizerSettings:
    """The run's optimiser with the stage's own learning rate, which falls to 0, and optimiser steps."""
    return settings.optimizer.replace(
        lr=lr,
        schedule="linear",
        warmup_updates=warmup_updates,
        minibatches=minibatches,
        minibatch_size=None,
        measure_gradients=False,
    )


class SFTLearner:
    """Learns by cross-entropy on the tokens of the true observation (WM-SFT, IWM).

    The loss is the world-model term of co-training (``paw_train.losses.objective``) without a policy term.
    """

    def __init__(
        self, policy: LocalPolicy, examples: Sequence[Example], settings: Settings
    ) -> None:
        self.settings, self.own = settings, settings.world_model_learning.sft
        self.rows = packed(examples)
        self.updater = Updater(
            policy,
            None,
            _optimizer(settings, self.own.lr, warmup_updates=0, minibatches=1),
            settings.objective.replace(kl_coef=0.0, entropy_coef=0.0, log_observations=True),
            WorldModelSettings.preset("echo"),
            1.0,
            self.own.updates,
            rate="world_model_learning.sft.lr",
        )

    def update(self, number: int) -> dict[str, Any]:
        """One update and its metrics; everything random in it follows from the seed and its number."""
        started, seed = time.perf_counter(), update_seed(self.settings.seed, 2, number)
        rows, count = self._batch(np.random.default_rng(seed))
        learned = self.updater.step(rows, number, seed)
        return {
            **{name: learned[key] for name, key in _LOGGED_SFT.items() if key in learned},
            "transitions": count,
            "seconds_train": time.perf_counter() - started,
        }

    def _batch(self, rng: np.random.Generator) -> tuple[list[TokenRow], int]:
        """(rows of at most ``batch_tokens``, all observations weighted equally; their number)"""
        taken: list[TokenRow] = []
        total = 0
        for i in rng.permutation(len(self.rows)):
            total += len(self.rows[i].ids)
            if taken and total > self.own.batch_tokens:
                break
            taken.append(self.rows[i])
        count = round(sum(sum(row.wm_weight or ()) for row in taken))
        rows, first = [], 0
        for row in taken:
            weights = [weight / count for weight in row.wm_weight or ()]
            rows.append(replace(row.numbered(first), wm_weight=weights))
            first += max(row.turn) + 1
        return rows, count


class RWMLLearner:
    """Learns by GRPO on sampled predictions, rewarded for similarity to the true observation (RWML)."""

    def __init__(
        self,
        policy: LocalPolicy,
        examples: Sequence[Example],
        similarity: Similarity,
        settings: Settings,
    ) -> None:
        self.policy, self.examples, self.similarity = policy, examples, similarity
        self.settings, self.own = settings, settings.world_model_learning.rwml
        # RL may run without its policy term; this stage has no other
        own = {"kl_coef": self.own.kl_coef, "kl_in": "loss", "policy_coef": 1.0}
        objective = settings.objective.replace(**own, entropy_coef=0.0, log_observations=False)
        reference = None
        if self.own.kl_coef > 0:
            reference = policy.reference(settings.model.reference_offload)
        self.updater = Updater(
            policy,
            reference,
            _optimizer(settings, self.own.lr, warmup_updates=2, minibatches=2),
            objective,
            WorldModelSettings.preset("off"),
            1.0,
            self.own.updates,
            rate="world_model_learning.rwml.lr",
        )

    def update(self, number: int) -> dict[str, Any]:
        """As of ``SFTLearner``."""
        own, started = self.own, time.perf_counter()
        seed = update_seed(self.settings.seed, 2, number)
        rng = np.random.default_rng(seed)
        count = min(own.transitions, len(self.examples))
        sampled = [self.examples[int(i)] for i in rng.choice(len(self.examples), count, False)]
        batch = self.settings.evaluation.batch
        guesses = predict(self.policy, sampled, own.group_size, own.max_tokens, seed, batch)
        predicted = time.perf_counter()
        texts = [guess.text for group in guesses for guess in group]
        truth = [example.text for example in sampled for _ in range(own.group_size)]
        cosines = self.similarity(texts, truth)
        rewarded = time.perf_counter()
        right = self.similarity.right(cosines)
        rows, metrics = rewarded_rows(sampled, guesses, right, skip_equal=own.kl_coef == 0)
        if rows:
            learned = self.updater.step(rows, number, seed)
            metrics |= {name: learned[name] for name in _LOGGED_RWML if name in learned}
        if self.updater.reference is not None:
            self.updater.reference.offload()
        return {
            **metrics,
            "similarity": float(cosines.mean()),
            "right_share": float(right.mean()),
            "exact_share": float(np.mean([a == b for a, b in zip(texts, truth, strict=True)])),
            "complete_share": float(np.mean([g.complete for group in guesses for g in group])),
            "different_share": len(set(texts)) / len(texts),
            "seconds_predict": predicted - started,
            "seconds_embed": rewarded - predicted,
            "seconds_train": time.perf_counter() - rewarded,
        }


def rewarded_rows(
    examples: Sequence[Example],
    guesses: Sequence[Sequence[Guess]],
    rewards: np.ndarray,
    skip_equal: bool = False,
) -> tuple[list[TokenRow], dict[str, float]]:
    """(predictions and their rewards as an update reads them, metrics): each is the action of its row.

    Args:
        rewards: [examples x guesses] 0 or 1.
        skip_equal: leave out groups whose rewards are all equal: they move nothing but a KL.
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
