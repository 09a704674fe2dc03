"""The settings of the RL algorithm: how rewards become advantages."""

from __future__ import annotations

from typing import Literal

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, PositiveShare, Share, Text


class CriticSettings(Group):
    """PPO's value function: the policy's decoder at the start of RL, with a scalar head."""

    lr: AtLeastZero = 1e-5
    """learning rate of its AdamW"""
    max_grad_norm: AboveZero = 1.0
    """gradient clipping"""
    value_clip: AboveZero | None = None
    """values may move this far from those of the rollout before the loss is cut; null: no limit"""
    warmup_updates: Count = 0
    """first updates in which only the critic learns"""


class AlgorithmSettings(Group):
    """How rewards become advantages."""

    name: Text = "grpo"
    """the advantage estimator: ``grpo``, ``gigpo``, ``rloo``, ``reinforce_pp`` (no critic), ``ppo`` (with
    a critic), ``tree_grpo`` or ``vineppo`` (for ``rollout.branching``), or one that another package adds"""
    normalize: bool = True
    """divide by a standard deviation: of the group (``grpo``, ``gigpo``, ``tree_grpo``; false is Dr.GRPO's
    choice) or of the whole update (``ppo``); ``rloo`` and ``vineppo`` never do, ``reinforce_pp`` always"""
    weighting: Literal["token", "episode"] = "token"
    """``token``: every action token of an update weighs the same, so long episodes weigh more;
    ``episode``: every episode weighs the same, as 1/|o_i| in GRPO's own objective (Shao et al. 2024)"""
    omega: AtLeastZero = 1.0
    """``gigpo``: weight of the step advantage; ``tree_grpo``: of the advantage among branches"""
    similarity: PositiveShare | None = None
    """``gigpo``: null matches anchor states exactly; 0.9 on difflib's ratio for search pages"""
    autojunk: bool = False
    """``gigpo`` with a ``similarity``: difflib's heuristic that ignores frequent characters of long
    texts, which GiGPO's published code leaves on"""
    statistics: Literal["episode", "step"] = "episode"
    """``grpo``, ``gigpo``: a group's mean and standard deviation are over its episodes, or over its
    ``step``s, where an episode counts once for each of its steps (GiGPO's published code)"""
    gamma: Share | None = None
    """discount a turn (``level: token``: a token); null: 0.95 for ``gigpo``, 1 for ``ppo``"""
    lam: Share = 1.0
    """``ppo``: trace decay of GAE"""
    level: Literal["turn", "token"] = "turn"
    """``ppo``: values and advantages by ``turn``, or by ``token`` of the responses"""
    group_baseline: bool = True
    """``reinforce_pp``: subtract the group's mean first; false is its form without groups"""
    dynamic_sampling: Count = 0
    """rollouts an update may add to replace groups whose returns are all equal (DAPO); 0: none"""
    critic: CriticSettings = CriticSettings()
    """``ppo`` only"""
