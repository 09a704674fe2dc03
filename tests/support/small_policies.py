"""Small untrained policies, the words that they need, and what their models read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from paw_gym.transition import Episode
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings.model import ScratchModelSettings

SMALLEST = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32}
SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 64}


def word_policy(texts: Iterable[str], seed: int = 0, **size: int) -> LocalPolicy:
    """A policy, the smallest by default, with a token for each word of some texts."""
    tokenizer = word_tokenizer(list(texts))
    settings = ScratchModelSettings(**{**SMALLEST, **size})
    return LocalPolicy(scratch_model(settings, len(tokenizer), seed), tokenizer)


def exact_policy(seed: int = 0) -> LocalPolicy:
    """One of three words whose numbers are of 64 bits."""
    policy = word_policy(["red green blue"], seed)
    policy.model.double()
    return policy


def said_in(episodes: Iterable[Episode]) -> list[str]:
    steps = [t for episode in episodes for t in episode.transitions]
    return [text for t in steps for text in (t.prompt, t.response, t.next_observation)]


@contextlib.contextmanager
def passes_of(model: Any) -> Iterator[list[Any]]:
    """The token ids of each forward pass that a model makes meanwhile."""
    read: list[Any] = []
    with model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"]), with_kwargs=True
    ):
        yield read
