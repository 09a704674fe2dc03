"""The local policy at work on a batch of episodes: dialogues keep their key-value cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from paw_train.policies.local.decoder import BatchDecoder, Decoder, LoopedSteps, open_decoder
from paw_train.policies.local.sampling import sample_tokens, uniforms
from paw_train.rollouts.chat import ChatFormat, StopStrings
from paw_train.rollouts.policy import Request, Response, Sampling

_FEWEST_TAKEN = 0.5
"""share of dialogues that go on, below which the others are dropped: saves memory, but copies the cache"""


class LocalSession:
    """Answers with a model in this process.

    Args:
        growing: whether contexts continue the earlier ones, so that only what is new is computed.
    """

    def __init__(self, model: Any, chat: ChatFormat, sampling: Sampling, growing: bool) -> None:
        self.model, self.chat, self.sampling = model, chat, sampling
        self._stops = StopStrings(chat, sampling.stop)
        self._dialogues = DialogueCache(model) if growing else None

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``rollouts.policy.Session``."""
        if not requests:
            return []
        self.model.eval()
        contexts = [
            r.ids if r.ids is not None else self.chat.dialogue(r.messages) for r in requests
        ]
        seeds = [r.seed for r in requests]
        if self._dialogues is None:
            decoder = open_decoder(self.model, len(requests))
            news = dict(enumerate(contexts))
            return respond(decoder, news, self.chat, self.sampling, seeds, self._stops)
        names = [r.episode for r in requests]
        decoder, news = self._dialogues.take(names, contexts)
        found = respond(decoder, news, self.chat, self.sampling, seeds, self._stops)
        for name, ids, response in zip(names, contexts, found, strict=True):
            # the last sampled token is in the context but not in the cache yet
            self._dialogues.read[name] = [*ids, *response.ids[:-1]]
        return found


class DialogueCache:
    """Growing dialogues in one decoder, whose key-value cache lasts from turn to turn."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.read: dict[str, list[int]] = {}
        """tokens of each dialogue that are in the cache; whoever feeds the decoder keeps this up"""
        self._decoder: Decoder | None = None
        self._row: dict[str, int] = {}

    def take(
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
        read = [self.read.get(name, []) for name in names]
        known = self._decoder.rewind(dict(zip(rows, map(_shared, read, contexts), strict=True)))
        return self._decoder, {
            row: ids[known[row] :] for row, ids in zip(rows, contexts, strict=True)
        }


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
    steps: LoopedSteps | _OneByOne
    if isinstance(decoder, BatchDecoder) and decoder.fixed:
        steps = decoder.sample(contexts, sampling, noise)
    else:
        steps = _OneByOne(decoder, contexts, sampling, noise)
    going = list(contexts)
    while going:
        for row, tokens in steps.advance(going).items():
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


class _OneByOne:
    """Tokens of a decoder that is fed each one, as soon as it is sampled."""

    def __init__(
        self,
        decoder: Decoder,
        contexts: Mapping[int, Sequence[int]],
        sampling: Sampling,
        noise: Tensor,
    ) -> None:
        self._decoder, self._sampling, self._noise = decoder, sampling, noise
        self._number = {row: i for i, row in enumerate(contexts)}
        self._next: dict[int, Sequence[int]] = dict(contexts)
        self._step = 0

    def advance(self, rows: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
        """The next token of each row and its log-probability, by row."""
        logits = self._decoder.feed({row: self._next[row] for row in rows})
        column = min(self._step, self._noise.shape[1] - 1)
        uniform = self._noise[[self._number[row] for row in rows], column]
        ids, logprobs = (x.tolist() for x in sample_tokens(logits, self._sampling, uniform))
        self._next, self._step = (
            {row: [i] for row, i in zip(rows, ids, strict=True)},
            self._step + 1,
        )
        return {row: [(i, p)] for row, i, p in zip(rows, ids, logprobs, strict=True)}
