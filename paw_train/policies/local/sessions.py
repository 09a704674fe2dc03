"""The local policy at work on a batch of episodes: dialogues keep their key-value cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.policies.local.decoder import open_decoder
from paw_train.policies.local.generate import respond
from paw_train.policies.local.seats import Seats
from paw_train.policies.local.stop_strings import StopTexts
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.settings.rollout import PREFILL_TOKENS


class LocalSession:
    """Answers with a model in this process.

    Args:
        model: a Hugging Face causal language model.
        chat: its chat format.
        sampling: of every response.
        growing: whether contexts continue the earlier ones, so that only what is new is computed.
        prefill_tokens: most context tokens of one forward pass: memory, not results.
    """

    def __init__(
        self,
        model: Any,
        chat: ChatFormat,
        sampling: Sampling,
        growing: bool,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self.model, self.chat, self.sampling = model, chat, sampling
        self.prefill_tokens = prefill_tokens
        self._stops = StopTexts(chat, sampling.stop)
        self._seats = Seats(model, prefill_tokens) if growing else None

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``protocol.Session``."""
        if not requests:
            return []
        self.model.eval()
        contexts = [
            r.ids if r.ids is not None else self.chat.dialogue(r.messages) for r in requests
        ]
        names = [r.episode for r in requests]
        seats = self._seats
        kept = [
            seats is not None and seats.holds(n, c) for n, c in zip(names, contexts, strict=True)
        ]
        responses: dict[int, Response] = {}
        for wanted, where in ((True, seats), (False, None)):
            numbers = [i for i, is_kept in enumerate(kept) if is_kept == wanted]
            if numbers:
                part = [(names[i], contexts[i], requests[i].seed) for i in numbers]
                responses |= zip(numbers, self._respond(part, where), strict=True)
        return [responses[i] for i in range(len(requests))]

    def _respond(
        self, asked: Sequence[tuple[str, Sequence[int], int]], seats: Seats | None
    ) -> list[Response]:
        """Responses to (name, context, seed), with what was computed for these dialogues or without."""
        names, contexts, seeds = zip(*asked, strict=True)
        if seats is None:
            decoder = open_decoder(self.model, len(names), self.prefill_tokens)
            return respond(decoder, contexts, self.chat, self.sampling, seeds, self._stops)
        decoder, news = seats.take(names, contexts)
        rows = seats.rows(names)
        found = respond(decoder, news, self.chat, self.sampling, seeds, self._stops, rows)
        for name, ids, response in zip(names, contexts, found, strict=True):
            # the last sampled token is in the context but not in the cache yet
            seats.read[name] = [*ids, *response.ids[:-1]]
        return found

    def retain(self) -> None:
        """See ``protocol.ForkingSession``."""
        if self._seats is not None:
            self._seats.retain = True

    def fork(self, branches: Mapping[str, tuple[str, int]]) -> None:
        """See ``protocol.ForkingSession``."""
        if self._seats is not None:
            self._seats.fork(branches)
