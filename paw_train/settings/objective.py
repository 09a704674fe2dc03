"""The settings of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from paw_train.settings.world_model import WorldModelSettings

Aggregation = Literal["token-mean", "sequence-mean", "fixed-length"]


@dataclass(frozen=True)
class ObjectiveSettings:
    """How per-token terms become one loss.

    Raises:
        ValueError: a value is out of range.
    """

    clip_low: float = 0.2
    """the probability ratio is clipped below at 1 - clip_low; [0, 1)"""
    clip_high: float = 0.2
    """... and above at 1 + clip_high; DAPO's clip-higher is 0.28; 0 or more"""
    kl_coef: float = 0.01
    """weight of the KL to the reference policy; 0.01 ALFWorld and WebShop, 0.001 search, 0 needs
    none"""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: the k3 estimate beside the surrogate; `reward`: the log-ratio of each response is
    taken off the reward of its step, before advantages (PPO's form in RLHF)"""
    entropy_coef: float = 0.0
    """weight of the entropy bonus, over the whole vocabulary at each action token; 0 costs nothing"""
    aggregation: Aggregation = "token-mean"
    """`token-mean` over all action tokens of the mini-batch; `sequence-mean` over each response
    first, then over responses; `fixed-length` the sum divided by B * fixed_length (Dr.GRPO: no
    length normalisation)"""
    fixed_length: int | None = None
    """tokens, for `fixed-length` only: usually the largest response length"""
    log_observations: bool = False
    """log the NLL of observations that nothing is learned from too (of all of them without PaW);
    their tokens then go through the forward pass"""
    wm: WorldModelSettings = field(default_factory=WorldModelSettings)
    """the world-model term"""

    def __post_init__(self) -> None:
        if not 0.0 <= self.clip_low < 1.0:
            raise ValueError(f"`clip_low` must be in [0, 1), got {self.clip_low}.")
        for name, value in (
            ("clip_high", self.clip_high),
            ("kl_coef", self.kl_coef),
            ("entropy_coef", self.entropy_coef),
        ):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"`{name}` must be a finite number, 0 or more; got {value}.")
        if self.kl_in not in ("loss", "reward"):
            raise ValueError(f"`kl_in` must be 'loss' or 'reward', got {self.kl_in!r}.")
        if self.aggregation not in get_args(Aggregation):
            raise ValueError(
                f"`aggregation` must be one of {', '.join(get_args(Aggregation))}; "
                f"got {self.aggregation!r}."
            )
        if self.aggregation == "fixed-length" and not (self.fixed_length or 0) > 0:
            raise ValueError(
                "`aggregation=fixed-length` needs `fixed_length`, a number of tokens above 0."
            )
