"""The user's side of the conversation: what every user can do, and one that follows a script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paw_gym.envs.tau2.messages import STOP, TRANSFER, Message

USERS = ("scripted", "endpoint")
HAND_OVER = "transfer_to_human_agents"
"""the tool of every domain after which the user talks to someone else"""


class UserError(RuntimeError):
    """The user did not answer."""


class UserSetupError(UserError):
    """The conversation cannot begin: the settings are wrong, or the user ends it at once."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the conversation that a user answers to."""

    record: Mapping[str, Any]
    """the task"""
    messages: Sequence[Message]
    """the conversation so far; grows with what ``use`` adds"""
    tools: Mapping[str, Mapping[str, Any]]
    """schemas of what it can do with its phone"""
    use: Callable[[str, Mapping[str, Any]], str]
    """does so, and returns what comes of it"""
    seed: int
    """of the episode"""


class User(Protocol):
    """Someone who answers the agent."""

    def reply(self, situation: Situation) -> str:
        """The user's next message; ``###STOP###`` and the like in it end the conversation.

        Raises:
            UserError: no answer could be had.
        """
        ...


def own_messages(situation: Situation) -> Iterator[Message]:
    """The conversation as a user knows it: what was said, and what its own tools answered."""
    for message in situation.messages:
        if message["role"] == "tool":
            if message["requestor"] == "user":
                yield message
        elif message["role"] == "user" or "calls" not in message:
            yield message


class ScriptedUser:
    """States what it knows piece by piece, one piece for each message of the agent.

    Then it agrees to everything, and says goodbye when a message comes with nothing done since its last
    words. Made for tests, for episodes without a model, and for experts: nothing is random, and nothing is
    understood either. Its pieces are the task's instructions, turned from "you" to "I". In telecom it
    does what a message names: ``toggle_airplane_mode``, or ``set_network_mode_preference {"mode":
    "4g_5g_preferred"}``.
    """

    def reply(self, situation: Situation) -> str:
        """See ``User``."""
        wanted = _named_tools(situation)
        if wanted:
            done = [f"{name}: {situation.use(name, arguments)}" for name, arguments in wanted]
            return "I did that. " + "\n".join(done)
        if _was_transferred(situation.messages):
            return TRANSFER
        script, told = user_script(situation.record), script_position(situation.messages)
        if told < len(script):
            return script[told]
        since_script, since_words = _calls_since(situation.messages, len(script))
        if since_words or (not since_script and told - len(script) < PATIENCE):
            return GO_ON
        return f"Thank you, goodbye. {STOP}"


CLOSING = "That is all I can tell you. Please do what is to be done, and tell me when it is."
"""ends the last piece of every script"""
GO_ON = "Yes. Please go on with whatever is left to do, and tell me when all of it is done."
PATIENCE = 2
"""messages without any deed that the scripted user puts up with before it says goodbye"""


def user_script(record: Mapping[str, Any]) -> list[str]:
    """The scripted user's messages for a task, in order."""
    told = record["user_scenario"]["instructions"]
    keys = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    texts = [told] if isinstance(told, str) else [str(told.get(key) or "") for key in keys]
    pieces = [in_first_person(" ".join(text.split())) for text in texts if re.search(r"\w", text)]
    last = pieces[-1] if pieces[-1].endswith((".", "!", "?")) else f"{pieces[-1]}."
    return [*pieces[:-1], f"{last} {CLOSING}"]


def script_position(messages: Sequence[Message]) -> int:
    """How many pieces of its script a user has stated: its words, reports of its phone left out."""
    told = 0
    before: Message | None = None
    for message in messages:
        if message["role"] == "user" and "calls" not in message and not message.get("given"):
            told += before is None or before["role"] != "tool" or before["requestor"] != "user"
        before = message
    return told


def _calls_since(messages: Sequence[Message], script_length: int) -> tuple[bool, bool]:
    """Whether anyone called a tool since the end of the script, and since the user's last words."""
    told = last = 0
    for place, message in enumerate(messages):
        if message["role"] == "user" and "calls" not in message and not message.get("given"):
            last = place
            if script_position(messages[: place + 1]) <= script_length:
                told = place
    return (
        any("calls" in message for message in messages[told:]),
        any("calls" in message for message in messages[last:]),
    )


def _was_transferred(messages: Sequence[Message]) -> bool:
    calls = {c["id"] for m in messages for c in m.get("calls", []) if c["name"] == HAND_OVER}
    return any(m["role"] == "tool" and m["id"] in calls and not m["error"] for m in messages)


def _named_tools(situation: Situation) -> list[tuple[str, dict[str, Any]]]:
    """The phone's tools that the agent's latest message names, with the arguments that follow."""
    text = str(situation.messages[-1].get("content") or "")
    found = []
    for match in re.finditer(r"[a-z_]+", text):
        if match.group() in situation.tools:
            found.append((match.group(), _object_at(text, match.end())))
    return found


def _object_at(text: str, start: int) -> dict[str, Any]:
    rest = text[start:].lstrip()
    if not rest.startswith("{"):
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_OBJECT = (
    r"\b(to|for|with|from|of|by|at|about|on|tell|tells|told|help|helps|give|gives|gave|ask|asks|asked"
    r"|offer|offers|let|lets|allow|allows|refund|charge|charged|send|transfer|cost|costs|get|gets) you\b"
)
_PERSONS = (
    (_OBJECT, r"\1 me"),
    (r"\byou are\b", "I am"),
    (r"\byou were\b", "I was"),
    (r"\byou['’]re\b", "I'm"),
    (r"\byou['’]", "I'"),
    (r"\byours\b", "mine"),
    (r"\byourself\b", "myself"),
    (r"\byour\b", "my"),
    (r"\byou\b", "I"),
)


def in_first_person(text: str) -> str:
    """Instructions to a user in the user's mouth; only persons are changed.

    >>> in_first_person("You are Raj. Your plan: they refund you what you paid.")
    'I am Raj. My plan: they refund me what I paid.'
    """
    for pattern, said in _PERSONS:
        text = re.sub(pattern, said, text, flags=re.IGNORECASE)
    return re.sub(r"(^|[.!?:]\s+)my\b", r"\1My", text) if not text.startswith("my") else _my(text)


def _my(text: str) -> str:
    return "My" + re.sub(r"([.!?]\s+)my\b", r"\1My", text[2:])
