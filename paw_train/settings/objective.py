"""Settings of the loss."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AtLeastZero, Positive, ShareBelowOne

Aggregation = Literal["token-mean", "sequence-mean", "fixed-length"]


class ObjectiveSettings(Group):
    """How per-token terms become one loss."""

    clip_low: ShareBelowOne = 0.2
    """the probability ratio is clipped from below at 1 - clip_low; [0, 1)"""
    clip_high: AtLeastZero = 0.2
    """the probability ratio is clipped from above at 1 + clip_high; DAPO's clip-higher is 0.28; 0 or more"""
    policy_coef: AtLeastZero = 1.0
    """weight of the clipped surrogate; 0 leaves out the policy term, so that only the world model is learned
    from the policy's rollouts (the reward-free form of ECHO)"""
    kl_coef: AtLeastZero = 0.01
    """weight of the KL to the reference policy; the paper uses 0.01 for ALFWorld and WebShop and 0.001 for
    search; with 0, no reference policy is needed"""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: the k3 estimate is added to the loss; `reward`: the log-ratio of each response is subtracted
    from the reward of its step, or with `algorithm.level: token` the log-ratio of each token from the
    token's own reward, before advantages are computed (PPO's form in RLHF)"""
    entropy_coef: AtLeastZero = 0.0
    """weight of the entropy bonus, over the whole vocabulary at each action token; 0: not computed"""
    aggregation: Aggregation = "token-mean"
    """how per-token losses are averaged: `token-mean`, over all action tokens of the mini-batch;
    `sequence-mean`, over each response first, then over responses; `fixed-length`, their sum divided by
    B * fixed_length (Dr.GRPO: no length normalization)"""
    fixed_length: Positive | None = None
    """number of tokens for `aggregation=fixed-length`: usually the maximum response length"""
    log_observations: bool = False
    """whether the NLL of observations without supervision is logged as well (without PaW: of all
    observations); their tokens are then part of the forward pass"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.aggregation == "fixed-length" and not (self.fixed_length or 0) > 0:
            raise ValueError(
                "`aggregation=fixed-length` needs `fixed_length`, a number of tokens above 0."
            )
        return self
