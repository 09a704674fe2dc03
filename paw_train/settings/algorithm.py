"""Settings of RL: how rewards become advantages, the loss, and the optimizer."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import (
    AboveZero,
    AtLeastZero,
    Count,
    Group,
    Positive,
    PositiveShare,
    Share,
    ShareBelowOne,
    Text,
)


class CriticSettings(Group):
    """PPO's value function: a copy of the policy's decoder at the start of RL, with a scalar head."""

    lr: AtLeastZero = 1e-5
    """learning rate of the critic's AdamW; its gradients are clipped like the policy's"""


class AlgorithmSettings(Group):
    """How rewards become advantages."""

    name: Text = "grpo"
    """advantage estimator: ``grpo``, ``gigpo``, ``rloo``, ``reinforce_pp`` (no critic), ``ppo`` (with a
    critic), or one that another package adds"""
    normalize: Literal[True, False, "batch"] = "batch"
    """the divisor of the advantages of ``grpo`` and ``gigpo``. ``batch``: the deviation of the update's
    returns without penalties, so that penalties never scale up a group without a success; ``true``:
    that of the group's returns, as published; ``false``: none (Dr.GRPO). ``ppo`` standardizes over the
    update unless it is false; ``rloo`` never divides, ``reinforce_pp`` always does"""
    weighting: Literal["token", "episode"] = "token"
    """``token``: every action token of an update has the same weight, so long episodes weigh more;
    ``episode``: every episode has the same weight, as 1/|o_i| in GRPO's own objective (Shao et al. 2024)"""
    similarity: PositiveShare | None = None
    """``gigpo``: smallest difflib ratio at which two states count as the same anchor (published: 0.9
    for search pages; as in the published code, difflib ignores frequent characters of long texts); null: they
    must be equal"""
    statistics: Literal["episode", "step"] = "episode"
    """``grpo``, ``gigpo``, ``reinforce_pp``: whether mean and standard deviation are over episodes
    (``episode``), or over steps (``step``), with an episode counted once for each of its steps (GiGPO's
    published code)"""
    penalty: Literal["episode", "step"] = "episode"
    """what the penalty for an invalid response (``env.invalid_penalty``) is charged to, in ``grpo``,
    ``gigpo``, ``rloo`` and ``reinforce_pp``: the return of its ``episode``, and so every step of it, or only
    its own ``step`` (GiGPO's published code)"""
    gamma: Share | None = None
    """discount per turn (``level: token``: per token); null: 0.95 for ``gigpo``, 1 for ``ppo``"""
    lam: Share = 1.0
    """``ppo``: trace decay of GAE"""
    level: Literal["turn", "token"] = "turn"
    """``ppo``: whether values and advantages are computed per ``turn``, or per ``token`` of the responses"""
    group_baseline: bool = True
    """``reinforce_pp``: whether the group's mean is subtracted first; false is the variant without groups"""
    dynamic_sampling: Count = 0
    """maximum number of extra rollouts in an update, to replace groups whose returns are all equal (DAPO);
    0: none. Needs groups of two or more episodes"""
    critic: CriticSettings = CriticSettings()
    """settings of the critic, for ``ppo`` only"""


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
    """weight of the KL to the reference policy, which the paper does not state: GiGPO's scripts use 0.01 for
    ALFWorld and WebShop and 0.001 for search; with 0, no reference policy is needed"""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: the k3 estimate is added to the loss; `reward`: the log-ratio of each response is subtracted
    from the reward of its step, or with `algorithm.level: token` the log-ratio of each token from the
    token's own reward, before advantages are computed (PPO's form in RLHF)"""
    entropy_coef: AtLeastZero = 0.0
    """weight of the entropy bonus, over the whole vocabulary at each action token; 0: not computed"""
    aggregation: Literal["token-mean", "sequence-mean"] = "token-mean"
    """how per-token losses are averaged: `token-mean`, over all action tokens of the mini-batch;
    `sequence-mean`, over each response first, then over responses"""
    log_observations: bool = False
    """whether the NLL of observations without supervision is logged as well (without PaW: of all
    observations); their tokens are then part of the forward pass"""


class OptimizerSettings(Group):
    """AdamW, and how an update is divided into optimizer steps."""

    lr: AtLeastZero = 1e-6
    """peak learning rate of AdamW"""
    matrix_lr: AboveZero | None = None
    """peak learning rate of Muon (weight matrices of the blocks), for models trained from scratch; null:
    AdamW for these too"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate schedule by update: ``constant``, or to 0 by ``linear`` or ``cosine``"""
    warmup_updates: Count = 0
    """number of updates over which the learning rate rises"""
    weight_decay: AtLeastZero = 0.0
    """weight decay of AdamW"""
    max_grad_norm: AboveZero = 1.0
    """maximum gradient norm; larger gradients are scaled down to it"""
    minibatches: Positive = 1
    """number of optimizer steps per update"""
    minibatch_size: Positive | None = None
    """number of sequences per optimizer step, as the papers give it: responses in window mode; episodes in
    conversation mode, where a sequence is a whole dialogue. An update then takes as many steps as its
    sequences need, all of nearly equal size; null: ``minibatches`` decides"""
    micro_batch_tokens: Positive = 16384
    """padded tokens per forward pass; affects memory, not results"""
    measure_gradients: bool = False
    """whether the gradient norms of the policy term and the world-model term are logged separately (a second
    backward pass)"""
