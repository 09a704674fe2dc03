"""Dialogues of agents with their policy, each no longer than the model can read.

Agents that write a dialogue of their own keep it in ``Dialogues``; those that send the environment's prompts
ask a ``ShorteningPolicy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paw_train.agents.examples import CHARACTERS_A_TOKEN
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Message, Policy, Request, Response, Sampling, Session
from paw_train.settings.rollout import RolloutSettings

_SHORTENED = 6
"""times that a dialogue is shortened if a server refuses it for its length"""
_KEPT = 0.75
"""share of the room for turns that is left after some were forgotten: the dialogue then grows again for
several turns, and what was computed for it (here, or by a server that keeps prefixes) is used again"""
_LEFT_OUT = "\n[The oldest part of what follows is left out here.]\n"


class Dialogue:
    """Messages, and their tokens as they were sampled where the policy has a tokenizer.

    Args:
        chat: the policy's chat format; ``None``: messages only.
        task: a part of the first message. If that message alone is too long, it loses what comes after the
            task; ``None``: it stays whole.
    """

    def __init__(self, chat: ChatFormat | None, first: str, task: str | None = None) -> None:
        self.chat = chat
        self.messages: list[Message] = [{"role": "user", "content": first}]
        self.ids: list[int] | None = chat.first(first) if chat else None
        self.forgotten = 0
        """turns that were left out"""
        self.cut = 0
        """characters that the first message has lost"""
        self._first, self._task = first, task
        self._characters_a_token = float(CHARACTERS_A_TOKEN)

    def add_response(self, response: Response) -> None:
        """Appends the agent's answer; its usage shows how many tokens the server counts."""
        if response.usage is not None and response.usage[0] > 0:
            self._characters_a_token = _characters(self.messages) / response.usage[0]
        self.messages.append({"role": "assistant", "content": response.text})
        if self.chat and self.ids is not None:
            self.ids = [*self.ids, *response.ids, *self.chat.closing(response.ids)]

    def add_message(self, message: str) -> None:
        self.messages.append({"role": "user", "content": message})
        if self.chat and self.ids is not None:
            self.ids = [*self.ids, *self.chat.content(message), *self.chat.ask]

    @property
    def tokens(self) -> int:
        """Length by the policy's tokenizer; without one, estimated by the server's last count of tokens."""
        return self._tokens_of(self.messages) if self.ids is None else len(self.ids)

    def _tokens_of(self, messages: Sequence[Message]) -> int:
        if self.chat:
            return len(self.chat.dialogue(messages))
        return math.ceil(_characters(messages) / self._characters_a_token)

    def fit(self, limit: int) -> None:
        """Forgets the oldest turns of a dialogue of more than ``limit`` tokens.

        The first and the newest message stay; a quarter of the room that they leave becomes free. If they are
        too long, the one message that is left is cut: after the task, or after the whole first message.
        """
        if self.tokens <= limit:
            return
        answer: Message = {"role": "assistant", "content": ""}
        fixed = self._tokens_of([self.messages[0], answer, self.messages[-1]])
        while self.tokens > fixed + (limit - fixed) * _KEPT and len(self.messages) > 1:
            self.forgotten += 1
            left_out = f"\n[The first {self.forgotten} step(s) of this episode are left out here.]"
            start, later = self._first + left_out, self.messages[3:]
            if not later:
                start += "\n" + self.messages[-1]["content"]
            self.messages = [{"role": "user", "content": start}, *later]
            if self.chat:
                self.ids = self.chat.dialogue(self.messages)
        if len(self.messages) == 1:
            self._cut_first(limit, self._first if self._task is None else self._task)

    def _cut_first(self, limit: int, task: str) -> None:
        """Leaves out what comes after the task in a message that is too long: the oldest history."""
        text = str(self.messages[0]["content"])
        end = text.find(task) + len(task) if task in text else 0
        start, tail = text[:end], text[end:].removeprefix(_LEFT_OUT)
        while self.tokens > limit and len(tail) > 1:
            lost = len(tail) // 4 + 1
            self.cut, tail = self.cut + lost, tail[lost:]
            self.messages = [{"role": "user", "content": f"{start}{_LEFT_OUT}{tail}"}]
            if self.chat:
                self.ids = self.chat.dialogue(self.messages)

    @property
    def notes(self) -> dict[str, int]:
        """Counts of what was left out, for the transition's ``info["agent"]``."""
        left_out = {"forgotten_turns": self.forgotten, "cut_characters": self.cut}
        return {name: count for name, count in left_out.items() if count}


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


class Dialogues:
    """The dialogues of one batch of episodes, by the episode's name."""

    def __init__(self, policy: Policy, rollout: RolloutSettings) -> None:
        self.policy, self.rollout = policy, rollout
        self._dialogues: dict[str, Dialogue] = {}
        self._session: Session | None = None

    def __contains__(self, episode: object) -> bool:
        return episode in self._dialogues

    def __getitem__(self, episode: str) -> Dialogue:
        return self._dialogues[episode]

    def add_message(self, episode: str, message: str, task: str | None = None) -> Dialogue:
        """Appends a message to an episode's dialogue, or begins it; what is too old is forgotten."""
        dialogue = self._dialogues.get(episode)
        if dialogue is None:
            dialogue = self._dialogues[episode] = Dialogue(self.policy.chat, message, task)
        else:
            dialogue.add_message(message)
        dialogue.fit(self._limit)
        return dialogue

    @property
    def _limit(self) -> int:
        known = getattr(self.policy, "context_tokens", None)
        limit = min(self.rollout.max_context_tokens, known or self.rollout.max_context_tokens)
        return limit - self.rollout.max_response_tokens

    def too_long(self, episode: str) -> str | None:
        """Why a dialogue is not sent, if what has to stay in it is known to be too long."""
        dialogue, limit = self._dialogues[episode], self._limit
        if dialogue.ids is None or dialogue.tokens <= limit:  # an estimate decides nothing
            return None
        return (
            f"The task and what precedes it take {dialogue.tokens} tokens of context, and the limit for a "
            f"prompt is {limit}: raise rollout.max_context_tokens as far as the model reads, or lower "
            "agent.examples or rollout.max_response_tokens."
        )

    def ask(self, seeds: Mapping[str, int], sampling: Sampling) -> list[Response]:
        """One response in each dialogue that ``seeds`` names; episodes may leave between calls."""
        if self._session is None:
            self._session = self.policy.session(sampling, True)
        found = {name: Response(error=e) for name in seeds if (e := self.too_long(name))}
        asked = [name for name in seeds if name not in found]
        for _ in range(1 + _SHORTENED):
            if not asked:
                break
            talks = [(name, self._dialogues[name]) for name in asked]
            requests = [Request(name, seeds[name], d.messages, d.ids) for name, d in talks]
            found |= zip(asked, self._session.respond(requests), strict=True)
            long = [name for name in asked if found[name].overflow]
            asked = [name for name in long if self._shorten(self._dialogues[name])]
        return [found[name] for name in seeds]

    def _shorten(self, dialogue: Dialogue) -> bool:
        """Shortens a dialogue refused for its length to the limit, or by a quarter; false if it cannot."""
        before, room = dialogue.notes, dialogue.tokens - 1
        known = getattr(self.policy, "context_tokens", None)
        dialogue.fit(room if known is None else min(room, known - self.rollout.max_response_tokens))
        return dialogue.notes != before


class ShorteningPolicy(Dialogues):
    """A policy for contexts that others write: without a tokenizer they are shortened as dialogues are.

    With one, they are kept within the limit as in training (``ChatFormat.first_within``), and one whose task
    alone exceeds it is not sent.

    Args:
        task: the task in the contexts of a request's name, which stays.
    """

    def __init__(
        self, policy: Policy, rollout: RolloutSettings, task: Callable[[str], str]
    ) -> None:
        super().__init__(policy, rollout)
        self.chat, self.trainable, self._task = policy.chat, policy.trainable, task

    def session(self, sampling: Sampling, growing: bool) -> Session:
        self._sampling, self._growing = sampling, growing
        if self.chat is not None:
            self._session = self.policy.session(sampling, growing)
        return self

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        if self.chat is not None:
            return self._within(self.chat, requests)
        for request in requests:
            name, message = request.episode, str(request.messages[-1]["content"])
            if not self._growing:
                self._dialogues.pop(name, None)
            self.add_message(name, message, self._task(name))
        responses = self.ask({r.episode: r.seed for r in requests}, self._sampling)
        for request, response in zip(requests, responses, strict=True):
            self[request.episode].add_response(response)
        return responses

    def _within(self, chat: ChatFormat, requests: Sequence[Request]) -> list[Response]:
        limit = self.rollout.max_context_tokens - self._sampling.max_tokens
        asked, found = list[Request](), dict[int, Response]()
        for number, request in enumerate(requests):
            ids, message = request.ids, str(request.messages[-1]["content"])
            try:
                if ids is None:
                    ids = chat.first_within(message, self._task(request.episode), limit)[0]
                asked.append(replace(request, ids=ids))
            except ValueError as error:
                found[number] = Response(error=str(error))
        responses = iter(self._session.respond(asked) if self._session and asked else [])
        return [found.get(number) or next(responses) for number in range(len(requests))]

    def left_out(self, name: str) -> dict[str, int]:
        """The notes on the context of the last request of a name."""
        return self[name].notes if name in self else {}
