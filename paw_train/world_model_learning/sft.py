"""WM-SFT's second stage: cross-entropy on the tokens of the next observation.

The loss is the world-model term of co-training (``paw_train.losses.objective``) without a policy term.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paw_train.algorithms.update import Updater
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import Settings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.world_model_learning.examples import Example, packed
from paw_train.world_model_learning.learner import Learner, stage_optimizer


class SFTLearner(Learner):
    """Learns from the likelihood of the true observations."""

    def __init__(
        self, policy: LocalPolicy, examples: Sequence[Example], settings: Settings
    ) -> None:
        self.own = settings.world_model_learning.sft
        self.rows = packed(examples)
        objective = settings.objective.replace(
            kl_coef=0.0,
            entropy_coef=0.0,
            log_observations=True,
        )
        optimizer = stage_optimizer(settings, self.own.lr, warmup_updates=0, minibatches=1)
        echo = WorldModelSettings.preset("echo")
        updater = Updater(
            policy,
            None,
            optimizer,
            objective,
            echo,
            1.0,
            self.own.updates,
            rate="world_model_learning.sft.lr",
        )
        super().__init__(settings, updater)

    def update(self, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        seed = self.seed(number)
        rows, count = weighted(
            sampled_rows(self.rows, self.own.batch_tokens, np.random.default_rng(seed))
        )
        learned = self.updater.step(rows, number, seed)
        return {
            **{name: learned[key] for name, key in _LOGGED.items() if key in learned},
            "transitions": count,
            "seconds_train": time.perf_counter() - started,
        }


_LOGGED = {
    "nll_per_token": "obs_nll",
    "loss": "wm_loss",
    **{name: name for name in ("grad_norm", "lr", "skipped")},
}
"""metrics of a stage's update, under the names that an updater gives them"""


def sampled_rows(rows: Sequence[TokenRow], budget: int, rng: np.random.Generator) -> list[TokenRow]:
    """Rows sampled without replacement, at least one, with at most ``budget`` tokens."""
    taken: list[TokenRow] = []
    total = 0
    for i in rng.permutation(len(rows)):
        total += len(rows[i].ids)
        if taken and total > budget:
            break
        taken.append(rows[i])
    return taken


def weighted(rows: Sequence[TokenRow]) -> tuple[list[TokenRow], int]:
    """Rows of ``packed`` as an update reads them, all observations weighted equally; and their number."""
    count = round(sum(sum(row.wm_weight or ()) for row in rows))
    found, first = [], 0
    for row in rows:
        weights = [weight / count for weight in row.wm_weight or ()]
        found.append(replace(row.numbered(first), wm_weight=weights))
        first += max(row.turn) + 1
    return found, count
