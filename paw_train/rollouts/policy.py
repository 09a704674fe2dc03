"""The interface between a rollout and a policy: one response for each running episode.

A policy opens a ``Session`` for one batch of episodes. The session is asked once a turn, for all
episodes that still run; it may keep anything from turn to turn (the local policy keeps each
dialogue's key-value cache). ``paw_train.rollouts.rollout`` and the prompting agents know nothing else of it.

Three policies follow the protocol: ``LocalPolicy`` (transformers, in this process), ``VLLMPolicy``
and ``EndpointPolicy`` (any OpenAI-compatible server).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paw_train.settings.rollout import Sampling

if TYPE_CHECKING:
    from paw_train.rollouts.chat import ChatFormat

Message = Mapping[str, Any]
"""a chat message: ``role`` (``system``, ``user`` or ``assistant``) and ``content``; with native tool
calling also ``tool_calls`` of an assistant, and messages of the role ``tool``"""


NOTHING_SAID = "(no answer)"
"""stands for an empty answer in a dialogue, since many servers refuse an empty message"""


def spoken(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A dialogue as servers take it: no answer in it is empty."""
    return [
        {**m, "content": NOTHING_SAID}
        if m["role"] == "assistant" and not m.get("tool_calls") and not m["content"].strip()
        else dict(m)
        for m in messages
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one episode: the next response in its context."""

    episode: str
    """names the episode; the same one turn after turn"""
    seed: int
    """of this response's sampling, in [0, 2**63)"""
    messages: Sequence[Message]
    """the whole context as chat messages; the last one is the user's"""
    ids: Sequence[int] | None = None
    """the same context in tokens, if the policy has a ``chat`` (else it is made from the messages)"""
    tools: Sequence[Mapping[str, Any]] = ()
    """functions that the model may call (OpenAI's tools schema); only endpoints use them"""


@dataclass(slots=True)
class Response:
    """The answer of a policy."""

    ids: list[int] = field(default_factory=list)
    """the sampled tokens, as sampled; empty if the policy does not report them"""
    logprobs: list[float] = field(default_factory=list)
    """of each id under the distribution it was sampled from (temperature and truncation included), in
    nats; for greedy choices: at temperature 1"""
    text: str = ""
    """what the environment reads: the response up to and including the stop text, without end tokens"""
    error: str | None = None
    """why there is no response; the episode then fails, the others go on"""
    usage: tuple[int, int] | None = None
    """tokens of the context and of the response as a server counted them; ``None``: unknown"""
    cached_tokens: int = 0
    """tokens of the context that the server had in its prefix cache"""
    reasoning: str | None = None
    """the thought, if a server gives it apart from the text"""
    reasoning_field: str | None = None
    """the field of the server's message that contained the thought, if it had its own"""
    finish_reason: str | None = None
    """why the response ended: ``stop``, ``length`` (``max_tokens`` was reached), ``tool_calls``,
    ``content_filter``; ``None``: unknown"""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """native tool calls: ``name``, ``arguments`` (a JSON text) and perhaps ``id`` of each"""
    refusal: str | None = None
    """the model's refusal, if a server gives it in a separate field"""
    overflow: bool = False
    """with an ``error``: the context was too long; a shorter one may be answered"""


class Session(Protocol):
    """A policy at work on one batch of episodes."""

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """One response for each request, in order.

        Episodes may leave from one call to the next; none comes back or joins later. The result for
        a request depends on its context, its seed and the sampling, not on what else is asked.
        """
        ...


@runtime_checkable
class Policy(Protocol):
    """Responds in episodes, whatever computes the responses."""

    @property
    def chat(self) -> ChatFormat | None:
        """Writes contexts in this policy's tokens; ``None``: it takes chat messages only."""
        ...

    @property
    def trainable(self) -> bool:
        """True if responses come with the ids and log-probabilities that training needs."""
        ...

    def session(self, sampling: Sampling, growing: bool) -> Session:
        """Opens a session.

        Args:
            sampling: of every response.
            growing: the contexts of an episode continue its last context and response (conversation
                mode), so that work on them is kept. A context that goes back is answered all the same,
                from where it departs from the last.
        """
        ...


def response_seed(base: int, episode: str, turn: int) -> int:
    """The seed of one response, in [0, 2**63): equal arguments, equal seed, on every machine.

    It depends on the episode's name and turn alone, so an episode's samples do not change with the
    episodes that run beside it.
    """
    digest = hashlib.blake2b(f"{base}/{turn}/{episode}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def complete(
    policy: Policy, dialogues: Sequence[Sequence[Message]], sampling: Sampling, seed: int = 0
) -> list[Response]:
    """One response to each of some dialogues, outside any episode.

    Response i does not depend on how many dialogues there are.
    """
    requests = [
        Request(str(i), response_seed(seed, str(i), 0), list(messages))
        for i, messages in enumerate(dialogues)
    ]
    return policy.session(sampling, growing=False).respond(requests) if requests else []
