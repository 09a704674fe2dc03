"""Text into tokens, piece by piece, so that every mask is known by construction; and the end of a response.

A dialogue is ``opening + prompt + ask`` then, for each turn, ``response + bridge + message + ask``.
The pieces come from the tokenizer's own chat template; contents are tokenised on their own, with
control tokens read as plain text, so nothing that an environment prints can end a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.internals.replies import stop_end, thoughts, truncate

_USER, _AGENT, _AGAIN = "\x02user\x02", "\x02agent\x02", "\x02again\x02"
_HALF_CHARACTER = "\ufffd"


class ChatFormat:
    """Encodes the pieces of a dialogue with a tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.

    Raises:
        ValueError: the tokenizer has no chat template, or one that is not of the usual form.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        pieces = _pieces(tokenizer)
        self.opening, self.ask, self.bridge = map(self._control, pieces)
        self.thought_opened = thoughts(pieces[1]).unclosed
        """the template begins the model's thought, so its responses begin inside one"""
        self.end_id: int | None = self.bridge[0] if self.bridge else tokenizer.eos_token_id
        ends = {self.end_id, getattr(tokenizer, "eos_token_id", None)}
        self.end_ids: frozenset[int] = frozenset(i for i in ends if i is not None)
        """tokens that end a response: the template's, and the tokenizer's own end of text"""

    def _control(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def content(self, text: str) -> list[int]:
        """Token ids of a text in which control tokens mean nothing."""
        if not text:
            return []
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])

    def first(self, prompt: str) -> list[int]:
        """Ids from the start of the dialogue to where the model answers."""
        return [*self.opening, *self.content(prompt), *self.ask]

    def first_within(self, prompt: str, keep: str, limit: int | None) -> tuple[list[int], int]:
        """As ``first``, with at most ``limit`` ids: a longer prompt loses tokens in its middle.

        What stays is the template's opening, the prompt up to the end of ``keep`` (the task), and as
        much of the prompt's end as fits: the oldest history after the task goes first.

        Args:
            prompt: the whole prompt.
            keep: a part of it that must stay; if the prompt lacks it, only its end stays.
            limit: maximum number of ids; ``None``: no limit.

        Returns:
            (ids, number of the prompt's tokens left out)

        Raises:
            ValueError: the opening and the task alone exceed the limit.
        """
        whole = self.first(prompt)
        if limit is None or len(whole) <= limit:
            return whole, 0
        end = prompt.find(keep) + len(keep) if keep in prompt else 0
        kept_start, tail = self.content(prompt[:end]), self.content(prompt[end:])
        room = limit - len(self.opening) - len(kept_start) - len(self.ask)
        if room < 0:
            raise ValueError(
                f"The task alone takes {limit - room} tokens of context, and the limit for a prompt is "
                f"{limit}: raise rollout.max_context_tokens (prompt and response together)."
            )
        kept = tail[len(tail) - room :] if room < len(tail) else tail
        return [*self.opening, *kept_start, *kept, *self.ask], len(tail) - len(kept)

    def dialogue(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a whole dialogue, up to where the model answers its last message.

        A system message is put before the first user message, with a blank line between: some
        templates have no system role, and this way every model reads the same.

        Raises:
            ValueError: the messages do not alternate between user and assistant, from user to user.
        """
        system = [m["content"] for m in messages if m["role"] == "system"]
        turns = [m for m in messages if m["role"] != "system"]
        wanted = ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))]
        if len(turns) % 2 == 0 or [m["role"] for m in turns] != wanted:
            roles = ", ".join(m["role"] for m in messages) or "no message"
            raise ValueError(
                f"Expected user and assistant messages in turn, the last a user's; got {roles}."
            )
        ids = self.first("\n\n".join([*system, turns[0]["content"]]))
        for answer, question in zip(turns[1::2], turns[2::2], strict=True):
            ids += [*self.content(answer["content"]), *self.bridge]
            ids += [*self.content(question["content"]), *self.ask]
        return ids

    def context(
        self, messages: Sequence[Mapping[str, str]], keep: str, limit: int | None
    ) -> list[int]:
        """Ids of a recorded context, truncated as in the rollout.

        ``first_within`` truncates a single prompt. A dialogue is whole: the rollout ended it at the limit.
        """
        if len(messages) == 1:
            return self.first_within(messages[0]["content"], keep, limit)[0]
        return self.dialogue(messages)

    def closing(self, response: list[int]) -> list[int]:
        """Ids between a sampled response and the next message; an end token is not written twice."""
        if response and self.bridge and response[-1] == self.bridge[0]:
            return self.bridge[1:]
        return self.bridge

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids, without the end token."""
        return self.raw(ids[:-1] if ids and ids[-1] in self.end_ids else ids)

    def raw(self, ids: list[int]) -> str:
        """The text of any ids, control tokens as they are written."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


def _pieces(tokenizer: Any) -> tuple[str, str, str]:
    """The template's text before the first message, after a user's message, and after an answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no chat template, so a prompt cannot be "
            "put into the form the model was trained on. Use an instruction-tuned model, or set "
            "tokenizer.chat_template (Hugging Face: 'Chat templates') and save it with the model."
        )
    messages = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _AGENT},
        {"role": "user", "content": _AGAIN},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    once = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    if any(text.count(mark) != 1 for mark in (_USER, _AGENT, _AGAIN)) or once.count(_USER) != 1:
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path!r} drops or repeats messages; "
            "expected one that prints each message once."
        )
    opening, ask = once.split(_USER)
    header = text.split(_AGENT)[0].split(_USER)[1]
    unasked = tokenizer.apply_chat_template(messages[:1], tokenize=False)
    # templates without headers (Mistral's) have nothing to add
    if once == unasked and header.startswith(ask) and header[len(ask) :].strip():
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path!r} has no generation prompt: it does not write "
            f"{header[len(ask) :]!r}, with which answers begin, when it is asked to. Add "
            "`{% if add_generation_prompt %}...{% endif %}` at its end and save it with the model."
        )
    bridge = text.split(_AGENT)[1].split(_AGAIN)[0]
    return opening, ask, bridge


class StopStrings:
    """Finds the end of responses: exact, token by token, without decoding all of it again and again.

    A stop text may be split across tokens, and its last token may carry more text. A token can complete one
    only if it holds the text's last character, so only such tokens cost a look at the decoded tail.
    A stop text inside a thought ends nothing (see ``paw_gym.internals.replies``). The ids stay as sampled;
    the text that the environment reads ends with the stop text, so every policy gives the same text for the
    same answer.
    """

    def __init__(self, chat: ChatFormat, texts: Sequence[str]) -> None:
        if not all(texts):
            raise ValueError(f"A stop text is empty: {list(texts)!r}.")
        self.chat, self.texts = chat, tuple(texts)
        self._longest = max((len(text) for text in texts), default=0)
        self._last = {text[-1] for text in texts}
        # a decoder may strip a blank at the end of a lone token
        self._always = any(last.isspace() for last in self._last)
        self._completing: dict[int, bool] = {}

    def ends(self, ids: Sequence[int]) -> bool:
        """True if the latest of the sampled ids ends the response; the earlier ones did not."""
        token = ids[-1]
        if token in self.chat.end_ids:
            return True
        if not self.texts:
            return False
        if token not in self._completing:
            text = self.chat.raw([token])
            last = self._always or _HALF_CHARACTER in text or any(c in text for c in self._last)
            self._completing[token] = last
        if not self._completing[token]:
            return False
        tail = self._tail(ids)
        if not any(text in tail for text in self.texts):
            return False
        whole = self.chat.raw(list(ids))
        return stop_end(whole, self.texts, self.chat.thought_opened, sampling=True) is not None

    def truncate(self, text: str) -> str:
        """A response's text up to and including the stop text that came first (``replies.truncate``)."""
        return truncate(text, self.texts, self.chat.thought_opened)

    def _tail(self, ids: Sequence[int]) -> str:
        """The decoded end of the response, long enough to hold any stop text and the last token."""
        # 8 more characters: what a decoder may strip or garble where the tail was truncated
        enough = self._longest + len(self.chat.raw([ids[-1]])) + 8
        size = enough
        while True:
            text: str = self.chat.raw(list(ids[-size:]))
            if len(text) >= enough or size >= len(ids):
                return text
            size *= 2
