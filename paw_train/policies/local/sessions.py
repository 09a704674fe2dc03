"""The local policy at work on a batch of episodes: dialogues keep their key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paw_train.policies.local.generate import BatchDecoder, respond
from paw_train.policies.local.stop_strings import StopTexts
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.settings.rollout import PREFILL_TOKENS

_MOST_WASTE = 0.3
"""share of holes in the cache beyond which it is packed: a copy, against attention over nothing"""


class LocalSession:
    """Answers with a model in this process.

    Args:
        model: a Hugging Face causal language model.
        chat: its chat format.
        sampling: of every response.
        growing: whether contexts extend the earlier ones, so that only what is new is computed.
        prefill_tokens: most padded context tokens of one forward pass: memory, not results.
    """

    def __init__(
        self,
        model: Any,
        chat: ChatFormat,
        sampling: Sampling,
        growing: bool,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self.model, self.chat, self.sampling, self.growing = model, chat, sampling, growing
        self.prefill_tokens = prefill_tokens
        self._stops = StopTexts(chat, sampling.stop)
        self._decoder: BatchDecoder | None = None
        self._seats: list[str] = []
        self._fed: dict[str, int] = {}

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``protocol.Session``."""
        if not requests:
            return []
        self.model.eval()
        contexts = [
            r.ids if r.ids is not None else self.chat.dialogue(r.messages) for r in requests
        ]
        names = [r.episode for r in requests]
        decoder = self._seat(names) if self.growing else self._new_decoder(len(names))
        news = [ids[self._fed.get(name, 0) :] for name, ids in zip(names, contexts, strict=True)]
        seeds = [r.seed for r in requests]
        responses = respond(decoder, news, self.chat, self.sampling, seeds, self._stops)
        if self.growing:
            for name, ids, response in zip(names, contexts, responses, strict=True):
                # the last sampled token is in the context but not in the cache yet
                self._fed[name] = len(ids) + len(response.ids) - 1
        return responses

    def _new_decoder(self, rows: int) -> BatchDecoder:
        return BatchDecoder(self.model, rows, self.prefill_tokens)

    def _seat(self, names: list[str]) -> BatchDecoder:
        """The decoder with exactly these dialogues in it, in this order."""
        if self._decoder is None:
            self._decoder = self._new_decoder(len(names))
        elif names != self._seats or self._decoder.waste() > _MOST_WASTE:
            place = {name: i for i, name in enumerate(self._seats)}
            self._decoder.keep([place[name] for name in names])
        self._seats = names
        return self._decoder
