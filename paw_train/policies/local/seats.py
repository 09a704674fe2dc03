"""Which dialogue sits in which row of a decoder, and how much of each it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.policies.local.decoder import BatchDecoder, Decoder, open_decoder

_FEWEST_TAKEN = 0.5
"""share of taken rows below which the others are dropped: memory, against a copy of the cache"""


class Seats:
    """Growing dialogues in one decoder, whose key-value cache lasts from turn to turn.

    Args:
        model: a Hugging Face causal language model.
        prefill_tokens: most context tokens of one forward pass: memory, not results.
        exact: dialogues that leave are dropped at once, so that the decoder holds those taken and no others.
    """

    def __init__(self, model: Any, prefill_tokens: int, exact: bool = False) -> None:
        self.model, self.prefill_tokens, self.exact = model, prefill_tokens, exact
        self.read: dict[str, list[int]] = {}
        """tokens of each dialogue that are in the cache; whoever feeds the decoder keeps this up"""
        self.retain = False
        """keep dialogues that leave, so that others can ``fork`` from them"""
        self._decoder: Decoder | None = None
        self._names: list[str] = []

    def take(
        self, names: Sequence[str], contexts: Sequence[Sequence[int]]
    ) -> tuple[Decoder, list[Sequence[int]]]:
        """The decoder with these dialogues in it, and what is new of each, at least one token.

        Others may be in it as well; ``rows`` tells them apart.

        Args:
            names: of the dialogues; all of the first call's, or fewer, all of which it ``holds``.
            contexts: each dialogue as a whole.
        """
        if not all(contexts):
            raise ValueError("A dialogue has no tokens; there is nothing to answer.")
        known = [
            _shared(self.read.get(name, []), ids) for name, ids in zip(names, contexts, strict=True)
        ]
        anew = not any(known) and set(self._names) <= set(names)
        if self._decoder is None or anew:
            self._decoder = open_decoder(self.model, len(names), self.prefill_tokens)
            self._names = list(names)
        elif self._drops(self._decoder, names):
            place = {name: i for i, name in enumerate(self._names)}
            self._decoder.keep([place[name] for name in names])
            self._names = list(names)
        self._go_back(dict(zip(names, known, strict=True)))
        return self._decoder, [ids[n:] for n, ids in zip(known, contexts, strict=True)]

    def holds(self, name: str, context: Sequence[int]) -> bool:
        """Whether a dialogue can go on in its row: it was only added to, or the cache can go back.

        One that cannot is computed from its start, now and in every later turn.
        """
        if self._decoder is None or isinstance(self._decoder, BatchDecoder):
            return True
        read = self.read.get(name, [])
        return name in self._names and _shared(read, context) == len(read)

    def _go_back(self, known: Mapping[str, int]) -> None:
        """Takes out of the cache what the dialogues no longer contain, or never did.

        The latter is there when an answer was interrupted.
        """
        place = {name: i for i, name in enumerate(self._names)}
        if isinstance(self._decoder, BatchDecoder):
            self._decoder.rewind({place[name]: kept for name, kept in known.items()})

    def _drops(self, decoder: Decoder, names: Sequence[str]) -> bool:
        """Whether the other dialogues leave the decoder now."""
        if list(names) == self._names:
            return False
        if self.exact or not isinstance(decoder, BatchDecoder):
            return True
        return not self.retain and len(names) < _FEWEST_TAKEN * len(self._names)

    def rows(self, names: Sequence[str]) -> list[int] | None:
        """The decoder's rows of some dialogues, where it holds others; else ``None``."""
        if list(names) == self._names:
            return None
        place = {name: i for i, name in enumerate(self._names)}
        return [place[name] for name in names]

    def fork(self, branches: Mapping[str, tuple[str, int]]) -> None:
        """Replaces all dialogues by branches of them, which begin with what was computed already.

        Without ``retain``, or where the cache cannot go back, the branches are read from the start.

        Args:
            branches: by name, the dialogue that each continues, and how many of its tokens they share.
        """
        if not self.retain or not isinstance(self._decoder, BatchDecoder):
            self._decoder, self._names, self.read = None, [], {}
            return
        place = {name: i for i, name in enumerate(self._names)}
        # the last shared token is read again: what it predicts is where the branch begins
        lengths = [tokens - 1 for _, tokens in branches.values()]
        self._decoder.fork([place[parent] for parent, _ in branches.values()], lengths)
        self._names = list(branches)
        self.read = {
            name: self.read[parent][:length]
            for (name, (parent, _)), length in zip(branches.items(), lengths, strict=True)
        }


def _shared(read: Sequence[int], context: Sequence[int]) -> int:
    """Tokens at the start of a context that were read, short of its last: what follows that one is wanted."""
    longest = min(len(read), len(context) - 1)
    if list(read[:longest]) == list(context[:longest]):
        return longest
    return next(i for i in range(longest) if read[i] != context[i])
