"""What decoders share that have nothing but ``feed``, over all their rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class WholeFeed(ABC):
    """Steps of some rows by feeding all, the others with nothing."""

    count: int
    """rows"""

    @abstractmethod
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """As ``BatchDecoder.feed``."""

    def advance(self, tokens: Mapping[int, int]) -> tuple[list[int], Tensor]:
        """As ``BatchDecoder.advance``."""
        rows = list(range(self.count))
        logits = self.feed([[tokens[row]] if row in tokens else [] for row in rows])
        going = [row for row in rows if row in tokens]
        return going, logits[torch.tensor(going, device=logits.device)]
