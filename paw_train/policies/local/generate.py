"""Responses of a batch of rows: sampled token by token until each has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paw_train.policies.local.decoder import BatchDecoder, Decoder
from paw_train.policies.local.sampling import sample_tokens, uniforms
from paw_train.policies.local.stop_strings import StopTexts
from paw_train.rollouts.policy import Response, Sampling


def respond(
    decoder: Decoder,
    contexts: Sequence[Sequence[int]],
    chat: Any,
    sampling: Sampling,
    seeds: Sequence[int],
    stops: StopTexts | None = None,
    rows: Sequence[int] | None = None,
) -> list[Response]:
    """Feeds each row its new context and samples a response for each.

    A response ends with a stop text, an end token, or at ``max_tokens``. Its last token is sampled
    but not yet fed: the next context starts with it.

    Args:
        decoder: B rows, or (a ``BatchDecoder``) more of which only ``rows`` are fed.
        contexts: B chunks, what was not fed yet.
        chat: decodes, and knows the end tokens.
        sampling: how tokens are sampled.
        seeds: B; row b's tokens depend on its own context and seed. They are the same in any batch, up
            to the rounding of the model's arithmetic, which differs a little between batch shapes.
        stops: of ``sampling.stop``, when there is one already (it remembers tokens).
        rows: B, the decoder's row of each context; ``None``: all rows, in order.
    """
    stops = stops or StopTexts(chat, sampling.stop)
    responses = [Response() for _ in contexts]
    noise = uniforms(seeds, sampling.max_tokens if sampling.temperature else 1)
    if rows is None or not isinstance(decoder, BatchDecoder):
        rows = range(len(contexts))
        working, logits = list(rows), decoder.feed(contexts)
    else:
        working, logits = decoder.feed_some(dict(zip(rows, contexts, strict=True)))
    number = {row: i for i, row in enumerate(rows)}
    for step in range(sampling.max_tokens):
        column = min(step, noise.shape[1] - 1)
        those = [number[row] for row in working]
        ids, logprobs = sample_tokens(logits, sampling, noise[those, column])
        going: dict[int, int] = {}
        for row, token, logprob in zip(working, ids.tolist(), logprobs.tolist(), strict=True):
            response = responses[number[row]]
            response.ids.append(token)
            response.logprobs.append(logprob)
            if not stops.ends(response.ids):
                going[row] = token
        if not going or step + 1 == sampling.max_tokens:
            break
        working, logits = decoder.advance(going)
    for response in responses:
        response.text = stops.truncate(chat.decode(response.ids))
    return responses
