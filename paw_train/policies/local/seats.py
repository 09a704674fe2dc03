"""Which dialogue sits in which row of a decoder, and how much of each it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paw_train.policies.local.generate import BatchDecoder

_MOST_WASTE = 0.3
"""share of holes in the cache beyond which it is packed: a copy, against attention over nothing"""


class Seats:
    """Growing dialogues in one decoder, whose key-value cache lasts from turn to turn.

    Args:
        model: a Hugging Face causal language model.
        prefill_tokens: most padded context tokens of one forward pass: memory, not results.
    """

    def __init__(self, model: Any, prefill_tokens: int) -> None:
        self.model, self.prefill_tokens = model, prefill_tokens
        self.fed: dict[str, int] = {}
        """tokens of each dialogue that are in the cache; whoever feeds the decoder keeps this up"""
        self._decoder: BatchDecoder | None = None
        self._names: list[str] = []

    def take(
        self, names: Sequence[str], contexts: Sequence[Sequence[int]]
    ) -> tuple[BatchDecoder, list[Sequence[int]]]:
        """The decoder with exactly these dialogues in it, in this order, and what is new of each.

        Args:
            names: of the dialogues; all of the first call's, or fewer.
            contexts: each dialogue as a whole.
        """
        wanted = list(names)
        if self._decoder is None:
            self._decoder = BatchDecoder(self.model, len(wanted), self.prefill_tokens)
        elif wanted != self._names or self._decoder.waste() > _MOST_WASTE:
            place = {name: i for i, name in enumerate(self._names)}
            self._decoder.keep([place[name] for name in wanted])
        self._names = wanted
        return self._decoder, [
            ids[self.fed.get(name, 0) :] for name, ids in zip(wanted, contexts, strict=True)
        ]
