"""The end of a response: exact, token by token, without decoding all of it again and again.

A stop text may be split across tokens, and its last token may carry more text. A token can complete one
only if it holds the text's last character, so only such tokens cost a look at the decoded tail.
A stop text inside a thought ends nothing (see ``paw_gym.internals.replies``). The ids stay as sampled;
the text that the environment reads ends with the stop text, so every policy gives the same text for the
same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paw_gym.internals.replies import stop_end, truncate

_HALF_CHARACTER = "\ufffd"


class StopStrings:
    """Finds the end of responses."""

    def __init__(self, chat: Any, texts: Sequence[str]) -> None:
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
        if not self.texts or not self._may_complete(token):
            return False
        tail = self._tail(ids)
        if not any(text in tail for text in self.texts):
            return False
        whole = self.chat.raw(list(ids))
        return stop_end(whole, self.texts, self.chat.thought_opened, sampling=True) is not None

    def truncate(self, text: str) -> str:
        """A response's text up to and including the stop text that came first (``replies.truncate``)."""
        return truncate(text, self.texts, self.chat.thought_opened)

    def _may_complete(self, token: int) -> bool:
        found = self._completing.get(token)
        if found is None:
            text = self.chat.raw([token])
            found = self._always or _HALF_CHARACTER in text or any(c in text for c in self._last)
            self._completing[token] = found
        return found

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
