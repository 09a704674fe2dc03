"""The local policy at work on a batch of episodes: dialogues keep their key-value cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from paw_train.policies.local.decoder import Advance, BatchDecoder, Decoder, open_decoder
from paw_train.policies.local.sampling import sample_tokens, uniforms
from paw_train.rollouts.chat import ChatFormat, StopStrings
from paw_train.rollouts.policy import Request, Response, Sampling

_FEWEST_TAKEN = 0.5
"""share of dialogues that go on, below which the others are dropped: saves memory, but copies the cache"""


class LocalSession:
    """Answers with a model in this process; of ``growing`` contexts, only what is new is computed."""

    def __init__(self, model: Any, chat: ChatFormat, sampling: Sampling, growing: bool) -> None:
        self.model, self.chat, self.sampling, self.growing = model, chat, sampling, growing
        self._stops = StopStrings(chat, sampling.stop)
        self._decoder: Decoder | None = None
        self._row: dict[str, int] = {}
        """each dialogue's row in the decoder"""
        self._read: dict[str, list[int]] = {}
        """the tokens of each dialogue in the decoder's cache"""

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``rollouts.policy.Session``."""
        if not requests:
            return []
        self.model.eval()
        contexts = [
            r.ids if r.ids is not None else self.chat.dialogue(r.messages) for r in requests
        ]
        seeds = [r.seed for r in requests]
        if not self.growing:
            decoder = open_decoder(self.model, len(requests))
            news = dict(enumerate(contexts))
            return respond(decoder, news, self.chat, self.sampling, seeds, self._stops)
        names = [r.episode for r in requests]
        decoder, news = self._continue(names, contexts)
        found = respond(decoder, news, self.chat, self.sampling, seeds, self._stops)
        for name, ids, response in zip(names, contexts, found, strict=True):
            # the last sampled token is in the context but not in the cache yet
            self._read[name] = [*ids, *response.ids[:-1]]
        return found

    def _continue(
        self, names: Sequence[str], contexts: Sequence[Sequence[int]]
    ) -> tuple[Decoder, dict[int, Sequence[int]]]:
        """The decoder with these dialogues in it, and by row what is new in each, at least one token.

        What the dialogues no longer contain, or never did because an answer was interrupted, is forgotten.
        """
        if not all(contexts):
            raise ValueError("A dialogue has no tokens; there is nothing to answer.")
        if self._decoder is None:
            self._decoder = open_decoder(self.model, len(names))
            self._row = {name: row for row, name in enumerate(names)}
        elif len(names) < _FEWEST_TAKEN * len(self._row):
            self._decoder.keep([self._row[name] for name in names])
            self._row = {name: row for row, name in enumerate(names)}
        rows = [self._row[name] for name in names]
        read = [self._read.get(name, []) for name in names]
        known = self._decoder.rewind(dict(zip(rows, map(_shared, read, contexts), strict=True)))
        news = {row: ids[known[row] :] for row, ids in zip(rows, contexts, strict=True)}
        return self._decoder, news


def _shared(read: Sequence[int], context: Sequence[int]) -> int:
    """Tokens at the start of a context that were read, except its last: what follows that one is wanted."""
    longest = min(len(read), len(context) - 1)
    if list(read[:longest]) == list(context[:longest]):
        return longest
    return next(i for i in range(longest) if read[i] != context[i])


def respond(
    decoder: Decoder,
    contexts: Mapping[int, Sequence[int]],
    chat: Any,
    sampling: Sampling,
    seeds: Sequence[int],
    stops: StopStrings | None = None,
) -> list[Response]:
    """Feeds rows their new contexts and samples a response for each.

    A response ends with a stop text, an end token, or at ``max_tokens``. Its last token is sampled
    but not yet fed: the next context starts with it.

    Args:
        contexts: by row, what was not fed yet.
        seeds: of each of ``contexts``; a row's tokens depend on its own context and seed. They are the same
            in any batch, up to the rounding of the model's arithmetic, which differs a little between batch
            shapes.
        stops: of ``sampling.stop``, if there is one already (it remembers tokens).
    """
    stops = stops or StopStrings(chat, sampling.stop)
    responses = {row: Response() for row in contexts}
    noise = uniforms(seeds, sampling.max_tokens if sampling.temperature else 1)
    if isinstance(decoder, BatchDecoder) and decoder.fixed:
        advance = decoder.sample(contexts, sampling, noise)
    else:
        advance = _one_by_one(decoder, contexts, sampling, noise)
    going = list(contexts)
    while going:
        for row, tokens in advance(going).items():
            response = responses[row]
            for token, logprob in tokens:
                response.ids.append(token)
                response.logprobs.append(logprob)
                if stops.ends(response.ids) or len(response.ids) == sampling.max_tokens:
                    going.remove(row)
                    break
    for response in responses.values():
        response.text = stops.truncate(chat.decode(response.ids))
    return list(responses.values())


def _one_by_one(
    decoder: Decoder, contexts: Mapping[int, Sequence[int]], sampling: Sampling, noise: Tensor
) -> Advance:
    """Tokens of a decoder that is fed each one, as soon as it is sampled."""
    number = {row: i for i, row in enumerate(contexts)}
    news: dict[int, Sequence[int]] = dict(contexts)
    step = 0

    def advance(rows: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
        nonlocal step
        logits = decoder.feed({row: news[row] for row in rows})
        uniform = noise[[number[row] for row in rows], min(step, noise.shape[1] - 1)]
        ids, logprobs = (x.tolist() for x in sample_tokens(logits, sampling, uniform))
        step += 1
        news.update((row, [i]) for row, i in zip(rows, ids, strict=True))
        return {row: [(i, p)] for row, i, p in zip(rows, ids, logprobs, strict=True)}

    return advance
