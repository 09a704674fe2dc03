"""The share of the world model's gradient that falls on noise (arXiv 2606.02388, Appendix A.4).

Noise are tokens of an observation that nobody can predict, such as product identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from paw_train.rollouts.chat import ChatFormat

_IDENTIFIER = re.compile(r"(?<![0-9A-Za-z])B[0-9A-Z]{9}(?![0-9A-Za-z])")
_BRAND = re.compile(r"(?<![0-9A-Za-z])[A-Z]{4,}[0-9]*(?![0-9A-Za-z])")

Spans = Sequence[tuple[int, int]]
"""[start, end) in characters of a text"""


def webshop_noise(text: str) -> Spans:
    """Product identifiers and upper-case brand names of a WebShop page.

    >>> page = "B0743JKHBV [SEP] NOVICA2 Shirt"
    >>> [page[a:b] for a, b in webshop_noise(page)]
    ['B0743JKHBV', 'NOVICA2']
    """
    found = [*_IDENTIFIER.finditer(text), *_BRAND.finditer(text)]
    return sorted({match.span() for match in found})


NOISE: dict[str, Callable[[str], Spans]] = {"paw_gym/WebShop-v0": webshop_noise}
"""noise in the observations of an environment, by its id"""


def noisy_tokens(chat: ChatFormat, text: str, spans: Spans) -> np.ndarray:
    """[T] bool: tokens of an observation that overlap a span, hence all pieces of a noisy word."""
    encoded = chat.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    tokens = encoded["offset_mapping"]
    return np.array([any(a < end and start < b for start, end in spans) for a, b in tokens], bool)


def gradient_shares(p: np.ndarray, noisy: np.ndarray, rho: float) -> dict[str, float]:
    """The shares of the gradient by the target's logit that fall on noisy tokens, by loss.

    Its magnitude is ``1 - p`` for cross-entropy, ``p (1 - p)`` for MAE, and for clipped MAE the same
    if ``p <= rho``, else 0 (Eq. 7).

    Args:
        p: [T] probabilities of observation tokens.
        noisy: [T] bool.
        rho: see above.

    Returns:
        By loss: ``ce``, ``mae``, ``cmae``, beside the share of ``tokens``; 0 if the whole gradient is 0.
    """
    sizes = {"tokens": np.ones_like(p), "ce": 1 - p, "mae": p * (1 - p)}
    sizes["cmae"] = np.where(p <= rho, sizes["mae"], 0.0)
    return {name: float(s[noisy].sum() / max(s.sum(), 1e-300)) for name, s in sizes.items()}
