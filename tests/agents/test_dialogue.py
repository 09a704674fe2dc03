"""A dialogue in tokens is the one that the model sampled, and fits its context."""

from __future__ import annotations

from typing import Any

import hostile

from paw_train.agents.dialogue import Dialogue
from paw_train.rollouts.chat import ChatFormat

TOKENIZER = hostile.byte_tokenizer()


def test_what_is_forgotten_is_whole_turns_from_the_start() -> None:
    chat = ChatFormat(TOKENIZER)

    def made(with_chat: Any) -> Dialogue:
        from paw_train.rollouts.policy import Response

        talk = Dialogue(with_chat, "The task.")
        for i in range(6):
            text = f"answer {i} " * 6
            talk.add_response(Response(chat.content(text), [], text))
            talk.add_message(f"observation {i} " * 4)
        return talk

    for with_chat, limit in ((chat, 500), (None, 125)):
        talk = made(with_chat)
        whole = [dict(m) for m in talk.messages]
        assert talk.tokens > limit
        talk.fit(limit)
        assert talk.tokens <= limit
        assert talk.messages[0]["content"].startswith("The task.\n[The first ")
        assert talk.messages[1:] == whole[1 + 2 * talk.forgotten :]
        if with_chat:
            assert talk.ids == chat.dialogue(talk.messages)
    tiny = made(None)
    tiny.fit(1)  # the task and the newest message stay, whatever the limit
    (message,) = tiny.messages
    assert message["content"].startswith("The task.")
    assert message["content"].endswith("observation 5 " * 4)
