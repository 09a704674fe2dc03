"""One growing dialogue of an agent with its policy, which forgets old turns when it gets too long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paw_train.baselines.examples import CHARACTERS_A_TOKEN
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Message, Response


class Dialogue:
    """Messages, and their tokens as they were sampled where the policy has a tokenizer.

    Args:
        chat: the policy's chat format; ``None``: messages only.
        first: the first message, which is never forgotten.
        count: the tokens of a dialogue by the model's own tokenizer, or ``None``.
    """

    def __init__(
        self,
        chat: ChatFormat | None,
        first: str,
        count: Callable[[Sequence[Message]], int | None] | None = None,
    ) -> None:
        self.chat, self._count = chat, count
        self.messages: list[Message] = [{"role": "user", "content": first}]
        self.ids: list[int] | None = chat.first(first) if chat else None
        self.forgotten = 0
        """turns that were left out"""
        self._first = first
        self._characters_a_token = float(CHARACTERS_A_TOKEN)

    def say(self, response: Response) -> None:
        """Appends the agent's answer; its usage says how long the server finds what was sent."""
        if response.usage is not None and response.usage[0] > 0:
            self._characters_a_token = self._characters() / response.usage[0]
        self.messages.append({"role": "assistant", "content": response.text})
        if self.chat and self.ids is not None:
            self.ids = [*self.ids, *response.ids, *self.chat.closing(response.ids)]

    def hear(self, message: str) -> None:
        """Appends what the environment says."""
        self.messages.append({"role": "user", "content": message})
        if self.chat and self.ids is not None:
            self.ids = [*self.ids, *self.chat.content(message), *self.chat.ask]

    @property
    def tokens(self) -> int:
        """Length by the policy's tokenizer.

        Without one: at the characters a token that the server's count of this dialogue's last request
        comes to, and before the first at four.
        """
        if self.ids is not None:
            return len(self.ids)
        counted = self._count(self.messages) if self._count else None
        return (
            math.ceil(self._characters() / self._characters_a_token) if counted is None else counted
        )

    def _characters(self) -> int:
        return sum(len(m["content"]) for m in self.messages)

    def fit(self, limit: int) -> None:
        """Forgets the oldest turns until ``limit`` tokens are kept to; the newest message always stays."""
        while self.tokens > limit and len(self.messages) > 1:
            self.forgotten += 1
            left_out = f"\n[The first {self.forgotten} step(s) of this episode are left out here.]"
            start, rest = self._first + left_out, self.messages[3:]
            if not rest:
                start += "\n" + self.messages[-1]["content"]
            self.messages = [{"role": "user", "content": start}, *rest]
            if self.chat:
                self.ids = self.chat.dialogue(self.messages)
