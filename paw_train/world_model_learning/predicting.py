"""A policy predicts the next observations of transitions, by sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling, response_seed
from paw_train.world_model_learning.examples import Example, ending


@dataclass(frozen=True, slots=True)
class Guess:
    """One sampled prediction."""

    response: Response
    """as sampled, the ending token included"""
    text: str
    """the predicted observation"""
    complete: bool
    """whether it ended by itself, within the limit of tokens"""


def predict(
    policy: LocalPolicy,
    examples: Sequence[Example],
    each: int,
    temperature: float,
    max_tokens: int,
    seed: int,
    batch: int = 256,
    prefill_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
) -> list[list[Guess]]:
    """Samples predictions.

    Args:
        policy: predicts.
        examples: N transitions.
        each: K predictions of each.
        temperature: of sampling.
        max_tokens: longest prediction.
        seed: of sampling; a prediction depends on it and its own number alone.
        batch: predictions sampled together (those of one example at least).
        prefill_tokens: most padded context tokens of one forward pass.
        progress: called with the number of examples done.

    Returns:
        [N][K]
    """
    end = ending(policy.chat)
    stop = () if end is None or end in policy.chat.end_ids else (policy.chat.raw([end]),)
    sampling = Sampling(temperature, max_tokens, stop)
    together = max(1, batch // each)
    found: list[list[Guess]] = []
    for start in range(0, len(examples), together):
        part = examples[start : start + together]
        requests = [
            Request(f"{start + i}/{k}", response_seed(seed, f"{start + i}/{k}", 0), [], e.context)
            for i, e in enumerate(part)
            for k in range(each)
        ]
        session = policy.session(sampling, False, prefill_tokens)
        guesses = [_guess(policy.chat, r, end) for r in session.respond(requests)]
        found += [guesses[i * each : (i + 1) * each] for i in range(len(part))]
        if progress:
            progress(len(found))
    return found


def _guess(chat: ChatFormat, response: Response, end: int | None) -> Guess:
    complete = response.ids[-1] == end or response.ids[-1] in chat.end_ids
    return Guess(response, chat.raw(response.ids[:-1] if complete else response.ids), complete)
