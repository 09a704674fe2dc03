"""Noise in the world model's gradient: the share of the gradient that falls on noise. Pure functions.

Source: arXiv 2606.02388, Appendix A.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from paw_gym.internals.constructors import import_named
from paw_gym.internals.naming import did_you_mean

CharSpan = tuple[int, int]
"""[start, end) in characters of an observation"""
Labeller = Callable[[str], Sequence[CharSpan]]
"""The spans of an observation that nobody can predict: identifiers, brands, ..."""

_IDENTIFIER = re.compile(r"(?<![0-9A-Za-z])B[0-9A-Z]{9}(?![0-9A-Za-z])")
_BRAND = re.compile(r"(?<![0-9A-Za-z])[A-Z]{4,}[0-9]*(?![0-9A-Za-z])")


@dataclass(frozen=True)
class GradientShares:
    """How the gradient of three losses is distributed over noisy tokens; shares in [0, 1]."""

    tokens: int
    """next-observation tokens scored"""
    noisy_tokens: int
    ce: float
    """share of the gradient magnitude under cross-entropy, 1 - p per token"""
    mae: float
    """... under mean absolute error, p (1 - p) per token"""
    cmae: float
    """... under clipped mean absolute error: the same where p <= rho, else 0"""

    @property
    def token_share(self) -> float:
        """Share of the tokens that are noisy: what a uniform distribution would give."""
        return self.noisy_tokens / self.tokens if self.tokens else 0.0


def gradient_shares(
    probabilities: Sequence[float] | np.ndarray,
    noisy: Sequence[bool] | np.ndarray,
    rho: float = 0.2,
) -> GradientShares:
    """The shares of the target-logit gradient that fall on noisy tokens.

    The derivative of a token's loss by the logit of its target has the magnitude 1 - p for -log p, and
    p (1 - p) for 1 - p.

    Args:
        probabilities: [T] p of each next-observation token, in [0, 1].
        noisy: [T] whether it is noise.
        rho: clipped MAE leaves out tokens predicted with more than this (Eq. 7).

    Returns:
        The shares; 0 where the whole gradient is 0.

    Raises:
        ValueError: the lengths differ, or a probability is outside [0, 1].
    """
    p = np.asarray(probabilities, dtype=np.float64)
    marked = np.asarray(noisy, dtype=bool)
    if p.shape != marked.shape or p.ndim != 1:
        raise ValueError(
            f"expected one label for each probability, got shapes {p.shape} and {marked.shape}."
        )
    if not ((p >= 0) & (p <= 1)).all():  # NaN fails too
        raise ValueError("probabilities must lie in [0, 1].")
    ce, mae = 1 - p, p * (1 - p)
    return GradientShares(
        len(p),
        int(marked.sum()),
        _share(ce, marked),
        _share(mae, marked),
        _share(np.where(p <= rho, mae, 0.0), marked),
    )


def _share(magnitude: np.ndarray, marked: np.ndarray) -> float:
    total = float(magnitude.sum())
    return float(magnitude[marked].sum()) / total if total > 0 else 0.0


def noisy_tokens(offsets: Sequence[CharSpan], spans: Sequence[CharSpan]) -> list[bool]:
    """For each token, whether it overlaps a noisy span; so every piece of a noisy word is noisy.

    Args:
        offsets: [T] the characters of each token, as a tokenizer's offset mapping gives them.
        spans: noisy characters of the same text.
    """
    return [any(a < end and start < b for start, end in spans) for a, b in offsets]


def webshop_noise(text: str) -> list[CharSpan]:
    """Product identifiers and upper-case brand names of a WebShop page.

    >>> page = "B0743JKHBV [SEP] NOVICA2 Shirt"
    >>> [page[a:b] for a, b in webshop_noise(page)]
    ['B0743JKHBV', 'NOVICA2']
    """
    found = [*_IDENTIFIER.finditer(text), *_BRAND.finditer(text)]
    return sorted({match.span() for match in found})


LABELLERS: Mapping[str, Labeller] = MappingProxyType({"paw_gym/WebShop-v0": webshop_noise})
"""the rule of each environment that has one"""


def labeller_for(env_id: str, name: str | None = None) -> Labeller | None:
    """The rule for which text is noise.

    Args:
        env_id: the environment; its own rule is used if it has one.
        name: another rule: ``module:function``, or the id of an environment that has one.

    Returns:
        ``None`` if no rule is defined.

    Raises:
        ValueError: there is no such rule.
    """
    if name is None:
        return LABELLERS.get(env_id)
    if name in LABELLERS:
        return LABELLERS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(
            f"There is no rule {name!r}. {did_you_mean(name, LABELLERS)} "
            "A rule of your own is given as module:function."
        )
    try:
        found: Labeller = getattr(import_named(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"The rule {name!r} cannot be loaded: {error}.") from None
    return found
