"""Settings of the RL algorithm: how rewards become advantages."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, PositiveShare, Share, Text


class CriticSettings(Group):
    """PPO's value function: a copy of the policy's decoder at the start of RL, with a scalar head."""

    lr: AtLeastZero = 1e-5
    """learning rate of the critic's AdamW"""
    max_grad_norm: AboveZero = 1.0
    """maximum gradient norm of the critic; larger gradients are scaled down to it"""
    value_clip: AboveZero | None = None
    """largest change of a value since the rollout, beyond which its loss is clipped; null: no clipping"""
    warmup_updates: Count = 0
    """number of initial updates in which only the critic learns"""


class AlgorithmSettings(Group):
    """How rewards become advantages."""

    name: Text = "grpo"
    """advantage estimator: ``grpo``, ``gigpo``, ``rloo``, ``reinforce_pp`` (no critic), ``ppo`` (with a
    critic), ``tree_grpo`` or ``vineppo`` (for ``rollout.branching``), or one that another package adds"""
    normalize: bool = True
    """whether advantages are divided by a standard deviation: that of the group (``grpo``, ``gigpo``,
    ``tree_grpo``; false is Dr.GRPO's choice) or of the whole update (``ppo``); ``rloo`` and ``vineppo`` never
    divide, ``reinforce_pp`` always does"""
    weighting: Literal["token", "episode"] = "token"
    """``token``: every action token of an update has the same weight, so long episodes weigh more;
    ``episode``: every episode has the same weight, as 1/|o_i| in GRPO's own objective (Shao et al. 2024)"""
    omega: AtLeastZero = 1.0
    """``gigpo``: weight of the step advantage; ``tree_grpo``: weight of the advantage among branches"""
    similarity: PositiveShare | None = None
    """``gigpo``: smallest difflib ratio at which two states count as the same anchor; null: they must be
    equal (0.9 is published for search pages)"""
    autojunk: bool = False
    """``gigpo`` with a ``similarity``: whether to use difflib's heuristic that ignores frequent characters of
    long texts, which GiGPO's published code leaves on"""
    statistics: Literal["episode", "step"] = "episode"
    """``grpo``, ``gigpo``, ``reinforce_pp``: whether mean and standard deviation are over episodes
    (``episode``), or over steps (``step``), where an episode counts once for each of its steps (GiGPO's
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
