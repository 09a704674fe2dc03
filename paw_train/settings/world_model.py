"""Settings of world-model supervision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from paw_gym.internals.naming import did_you_mean
from paw_train.settings.base import Group
from paw_train.settings.ranges import AtLeastZero, Positive, PositiveShare, Text, yaml_switch


def _compiled(pattern: str) -> str:
    """The pattern, if it is a regular expression."""
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
"""named set-ups, by what differs from the defaults"""


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
        return {**PRESETS[name], **{k: v for k, v in data.items() if k != "preset"}}

    @property
    def filters_tokens(self) -> bool:
        """Whether single tokens of observations are left out, so that the filter reads their text."""
        return self.enabled and (self.filter_echoes or bool(self.filter_patterns))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named set-up, with single fields changed at will.

        Args:
            name: `off` plain RL; `paw` the paper; `echo` plain next-observation cross-entropy on
                every transition during RL (alpha 1, no adaptive weight), the published baseline.
            changes: fields to override.
        """
        return cls.read({"preset": name, **changes}, "world_model")
