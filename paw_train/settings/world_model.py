"""The settings of world-model supervision, checked when they are made."""

import math
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Self

WEIGHTINGS = ("transition", "token")
FILTERS = ("off", "warnings")
ENTROPIES = ("sampled", "full")
DEDUP = ("off", "once", "weighted")
PRESETS = ("off", "paw", "echo")


@dataclass(frozen=True)
class WorldModelSettings:
    """How the policy is trained on the observations that follow its own actions.

    The defaults are PaW as published (arXiv 2606.02388, Appendix A.1); `WorldModelSettings.preset`
    gives the other named set-ups.

    Raises:
        ValueError: a value that is not allowed; the message names the nearest one that is.
    """

    wm: str = "on"
    """`on` or `off`; `off` is the plain RL algorithm. YAML's own true and false (`wm: off`) are
    accepted."""
    loss: str = "cmae"
    """`cmae` clipped mean absolute error (Eq. 8), `mae` the same unclipped, `ce` cross-entropy (Eq.
    5), `gce` generalised cross-entropy (our extension), between `ce` and `mae` by `q`, or one that
    another package adds"""
    alpha: float = 0.75
    """fraction of the update's transitions supervised; (0, 1]"""
    rho: float = 0.2
    """`cmae` drops tokens predicted with a probability above this (Eq. 7); (0, 1]"""
    adaptive: bool = True
    """weigh each group by 1 - mean return / R_max (Eq. 10); False: every group weighs 1"""
    coef: float = 1.0
    """factor on the whole term; 1 is Eq. 11; 0 or more"""
    entropy: str = "sampled"
    """`sampled`: the paper's estimate from the sampled tokens; `full`: Shannon entropy over the
    vocabulary (one more forward pass over the update)"""
    horizon: int = 1
    """observations supervised for each action: 1 is the paper; k supervises o_{t+1} to o_{t+k} along
    the actions that were really taken (our extension)"""
    discount: float = 0.5
    """weight of each further observation relative to the one before it; (0, 1]"""
    dedup: str = "off"
    """identical (h_t, a_t, o_{t+1}) of one update (our extension): `off` each counts; `once` only the
    first can be selected; `weighted` each weighs 1 / its number of copies"""
    q: float = 0.5
    """`gce` only: exponent of `(1 - p^q) / q`; 1 is `mae`, towards 0 it becomes `ce`; (0, 1]"""
    gradient_ratio: float | None = None
    """keep the term's gradient norm at this multiple of the policy term's, in each optimiser step (our
    extension; local engine); `coef` then has no effect; null: `coef` decides"""
    weighting: str = "transition"
    """`transition`: every selected transition of a group weighs the same, its tokens 1 / |o| (Eq. 8);
    `token`: every observation token of the group's selected transitions does (our extension)"""
    filter: str = "off"
    """`warnings` leaves out what follows a malformed response: the interface complains there, the
    environment says nothing (the published ECHO's filter); `off`: all count"""
    selection: str = "top_entropy"
    """which transitions are supervised: `top_entropy`, the `alpha` of highest action entropy (Eq. 4), or a
    selection that another package adds"""

    def __post_init__(self) -> None:
        given: object = self.wm
        if isinstance(given, bool):
            object.__setattr__(self, "wm", "on" if given else "off")
        _check_choice("wm", self.wm, ("off", "on"))
        _check_choice("entropy", self.entropy, ENTROPIES)
        _check_choice("dedup", self.dedup, DEDUP)
        _check_choice("weighting", self.weighting, WEIGHTINGS)
        _check_choice("filter", self.filter, FILTERS)
        _check_fraction("q", self.q)
        if self.weighting == "token" and self.horizon != 1:
            raise ValueError(
                "world model `weighting=token` counts the tokens of o_{t+1} alone: use `horizon` 1, or "
                "`weighting` transition."
            )
        if not isinstance(self.horizon, int) or self.horizon < 1:
            raise ValueError(
                f"world model `horizon` is a number of steps, 1 or more; got {self.horizon!r}."
            )
        _check_fraction("discount", self.discount)
        if self.adaptive not in (True, False):
            raise ValueError(
                f"world model `adaptive` must be true or false, got {self.adaptive!r}."
            )
        _check_fraction("alpha", self.alpha)
        _check_fraction("rho", self.rho)
        for name, value in (("coef", self.coef), ("gradient_ratio", self.gradient_ratio or 0.0)):
            _check_number(name, value)
            if value < 0:
                raise ValueError(
                    f"world model `{name}` must be 0 or more, got {value}; nearest valid value: 0.0."
                )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named set-up, with single fields changed at will.

        Args:
            name: `off` plain RL; `paw` the paper; `echo` plain next-observation cross-entropy on
                every transition during RL (alpha 1, no adaptive weight), the published baseline.
            changes: fields to override.
        """
        _check_choice("preset", name, PRESETS)
        named: dict[str, dict[str, Any]] = {
            "off": {"wm": "off"},
            "paw": {},
            "echo": {"loss": "ce", "alpha": 1.0, "adaptive": False},
        }
        return replace(cls(**named[name]), **changes)


def _check_choice(field: str, value: Any, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    nearest = get_close_matches(str(value), choices, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"world model `{field}` must be one of {', '.join(choices)}; got {value!r}; "
        f"nearest valid value: {nearest}."
    )


def _check_number(field: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"world model `{field}` must be a finite number, got {value!r}.")


def _check_fraction(field: str, value: Any) -> None:
    _check_number(field, value)
    if not 0.0 < value <= 1.0:
        nearest = "1.0" if value > 1 else "a small positive number such as 0.05"
        hint = "; to train without it set `wm` to off" if value <= 0 and field == "alpha" else ""
        raise ValueError(
            f"world model `{field}` must be in (0, 1], got {value}; "
            f"nearest valid value: {nearest}{hint}."
        )
