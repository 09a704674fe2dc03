"""The local policy at work on a batch of episodes: dialogues keep their key-value cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.policies.local.decoder import Decoder, open_decoder
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
        growing: whether contexts extend the earlier ones, so that only what is new is computed.
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
        decoder, news = self._decoder(names, contexts)
        seeds = [r.seed for r in requests]
        rows = self._seats.rows(names) if self._seats is not None else None
        responses = respond(decoder, news, self.chat, self.sampling, seeds, self._stops, rows)
        if self._seats is not None:
            for name, ids, response in zip(names, contexts, responses, strict=True):
                # the last sampled token is in the context but not in the cache yet
                self._seats.fed[name] = len(ids) + len(response.ids) - 1
        return responses

    def retain(self) -> None:
        """See ``protocol.ForkingSession``."""
        if self._seats is not None:
            self._seats.retain = True

    def fork(self, branches: Mapping[str, tuple[str, int]]) -> None:
        """See ``protocol.ForkingSession``."""
        if self._seats is not None:
            self._seats.fork(branches)

    def _decoder(
        self, names: Sequence[str], contexts: Sequence[Sequence[int]]
    ) -> tuple[Decoder, Sequence[Sequence[int]]]:
        """What computes the responses, and what it has not read yet."""
        if self._seats is not None:
            return self._seats.take(names, contexts)
        return open_decoder(self.model, len(names), self.prefill_tokens), contexts
