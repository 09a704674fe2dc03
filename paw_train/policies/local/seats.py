"""Which dialogue sits in which row of a decoder, and how much of each it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self.retain = False
        """keep dialogues that leave, so that others can ``fork`` from them"""
        self._decoder: BatchDecoder | None = None
        self._names: list[str] = []

    def take(
        self, names: Sequence[str], contexts: Sequence[Sequence[int]]
    ) -> tuple[BatchDecoder, list[Sequence[int]]]:
        """The decoder with exactly these dialogues in it, in this order, and what is new of each.

        With ``retain`` earlier ones stay in it as well; ``rows`` tells them apart.

        Args:
            names: of the dialogues; all of the first call's, or fewer.
            contexts: each dialogue as a whole.
        """
        wanted = list(names)
        if self._decoder is None:
            self._decoder = BatchDecoder(self.model, len(wanted), self.prefill_tokens)
            self.retain = self.retain and self._decoder.can_fork
        elif self.retain:
            wanted = self._names
            if self._decoder.waste() > _MOST_WASTE:
                self._decoder.keep(range(len(wanted)))
        elif wanted != self._names or self._decoder.waste() > _MOST_WASTE:
            place = {name: i for i, name in enumerate(self._names)}
            self._decoder.keep([place[name] for name in wanted])
        self._names = wanted
        return self._decoder, [
            ids[self.fed.get(name, 0) :] for name, ids in zip(names, contexts, strict=True)
        ]

    def rows(self, names: Sequence[str]) -> list[int] | None:
        """The decoder's rows of some dialogues, where it may hold others; else ``None``."""
        if not self.retain or list(names) == self._names:
            return None
        place = {name: i for i, name in enumerate(self._names)}
        return [place[name] for name in names]

    def fork(self, branches: Mapping[str, tuple[str, int]]) -> None:
        """Replaces all dialogues by branches of them, which begin with what was computed already.

        Without ``retain``, or where the cache cannot go back, the branches are read from the start.

        Args:
            branches: by name, the dialogue that each continues, and how many of its tokens they share.
        """
        if not self.retain or self._decoder is None:
            self._decoder, self._names, self.fed = None, [], {}
            return
        place = {name: i for i, name in enumerate(self._names)}
        # the last shared token is read again: what it predicts is where the branch begins
        lengths = [tokens - 1 for _, tokens in branches.values()]
        self._decoder.fork([place[parent] for parent, _ in branches.values()], lengths)
        self._names = list(branches)
        self.fed = dict(zip(branches, lengths, strict=True))
