"""The space of Unicode strings, used for observations and actions alike."""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Text

MAX_LENGTH = 2**24
"""characters; far beyond any prompt, so that the environment, not a space, rejects a long answer"""

_SAMPLE_CHARSET = string.ascii_letters + string.digits + string.punctuation + " \n" + "äßéñ你好🙂"
_SAMPLE_LENGTH = 32


class UnicodeText(Text):
    """Every string of at most ``max_length`` characters, the empty one included.

    Gymnasium's ``Text`` has a fixed character set (its default rejects a space). This one accepts
    any character; ``sample`` gives short strings from a small set that mixes ASCII and non-ASCII.

    Args:
        max_length: the longest member, in characters.
        seed: seed of ``sample``.
    """

    def __init__(self, max_length: int = MAX_LENGTH, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLE_CHARSET, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(1, min(self.max_length, _SAMPLE_LENGTH) + 1))
        return "".join(self.np_random.choice(list(_SAMPLE_CHARSET), size=length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
