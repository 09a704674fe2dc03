"""The user's side of the conversation: one that follows a script, and one that a language model plays."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paw_gym.envs.tau2.conversation import STOP, TRANSFER, Message, data_folder, tau2_module
from paw_gym.internals.http import HttpError, JsonClient
from paw_gym.internals.naming import require_choice
from paw_gym.internals.replies import read_chat, split_thought, tool_arguments, tool_name

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
    """does it, and returns the result"""
    seed: int
    """that of the episode"""


class User(Protocol):
    """Someone who answers the agent."""

    def reply(self, situation: Situation) -> str:
        """The user's next message; ``###STOP###`` and the like in it end the conversation."""
        ...


class ScriptedUser:
    """States what it knows piece by piece, one piece for each message from the agent.

    Then it agrees to everything, and says goodbye when a message comes with nothing done since its last
    words. Nothing is random, and nothing is understood either. In telecom it does what a message names:
    ``toggle_airplane_mode``, or ``set_network_mode_preference {"mode": "4g_5g_preferred"}``.
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
"""messages without a tool call that the scripted user puts up with before it says goodbye"""


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
    """Two flags: a tool was called since the end of the script, and since the user's last words."""
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
    words = [match for match in re.finditer(r"[a-z_]+", text) if match[0] in situation.tools]
    return [(word[0], _object_at(text, word.end())) for word in words]


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
    """Instructions to a user as the user would say them; only the grammatical person is changed.

    >>> in_first_person("You are Raj. Your plan: they refund you what you paid.")
    'I am Raj. My plan: they refund me what I paid.'
    """
    for pattern, said in _PERSONS:
        text = re.sub(pattern, said, text, flags=re.IGNORECASE)
    if text.startswith("my"):
        return "My" + re.sub(r"([.!?]\s+)my\b", r"\1My", text[2:])
    return re.sub(r"(^|[.!?:]\s+)my\b", r"\1My", text)


URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
MAX_ROUNDS = 10
"""times that a user may turn to its phone before it says something"""
_SETUP = frozenset({401, 403, 404})
"""HTTP statuses that mean that the address, the key or the model is wrong"""


class EndpointUser:
    """Asks a model to speak as the user, with the guidelines that the package gives its own simulator.

    Args:
        url: address with its version (``http://host:8000/v1``); ``None``: that in ``OPENAI_BASE_URL``.
        settings: ``key_variable`` (environment variable that holds the key: ``OPENAI_API_KEY``),
            ``temperature`` (0), ``max_tokens`` (none), ``seed`` (whether to send the episode's: True),
            ``timeout`` (60 s), ``attempts`` (4), ``backoff`` (0.5 s, doubled for each further attempt).
    """

    def __init__(
        self, model: str | None, url: str | None, settings: Mapping[str, Any] | None = None
    ) -> None:
        url = url or os.environ.get(URL_VARIABLE)
        if not model or not url:
            raise ValueError(
                "user='endpoint' needs user_model, the name of the model that plays the user, and "
                f"user_url, the address of an OpenAI-compatible endpoint (or {URL_VARIABLE})."
            )
        chosen = {**_DEFAULTS, **(settings or {})}
        for key in chosen:
            require_choice("user setting", key, _DEFAULTS)
        self.model, self._chosen = model, chosen
        self._client = JsonClient(
            url,
            os.environ.get(str(chosen["key_variable"])),
            float(chosen["timeout"]),
            int(chosen["attempts"]),
            float(chosen["backoff"]),
        )

    def reply(self, situation: Situation) -> str:
        """See ``User``."""
        for _ in range(MAX_ROUNDS):
            message = self._ask(situation)
            calls = message.get("tool_calls") or []
            if not calls:
                text = split_thought(message["text"])[1].strip()
                if not text:
                    raise UserError("The model that plays the user answered without any words.")
                return text
            for call in calls:
                arguments = tool_arguments(call["arguments"] or "{}")
                if not isinstance(arguments, dict):
                    raise UserError("The model that plays the user called a tool without names.")
                situation.use(tool_name(call["name"]), arguments)
        raise UserError(f"The user turned to its phone {MAX_ROUNDS} times without a word.")

    def _ask(self, situation: Situation) -> dict[str, Any]:
        system = {
            "role": "system",
            "content": system_prompt(situation.record, bool(situation.tools)),
        }
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [system, *map(_turned, filter(_knows, situation.messages))],
            "temperature": self._chosen["temperature"],
        }
        if self._chosen["max_tokens"] is not None:
            request["max_tokens"] = self._chosen["max_tokens"]
        if self._chosen["seed"]:
            request["seed"] = situation.seed
        if situation.tools:
            request["tools"] = [
                {"type": "function", "function": schema} for schema in situation.tools.values()
            ]
        try:
            answer = self._client.ask("POST", "/chat/completions", request, read=read_chat)
        except HttpError as error:
            raise (UserSetupError if error.status in _SETUP else UserError)(str(error)) from error
        return dict(answer)


_DEFAULTS: Mapping[str, Any] = {
    "key_variable": KEY_VARIABLE,
    "temperature": 0.0,
    "max_tokens": None,
    "seed": True,
    "timeout": 60.0,
    "attempts": 4,
    "backoff": 0.5,
}


def system_prompt(record: Mapping[str, Any], with_tools: bool) -> str:
    """The system prompt of the package's own user simulator: its guidelines, and the task's scenario."""
    name = "simulation_guidelines_tools.md" if with_tools else "simulation_guidelines.md"
    guidelines = (data_folder() / "user_simulator" / name).read_text(encoding="utf-8")
    scenario = tau2_module("data_model.tasks").UserScenario.model_validate(record["user_scenario"])
    return f"{guidelines}\n\n<scenario>\n{scenario}\n</scenario>"


def _knows(message: Message) -> bool:
    """True for what was said, and for what the user's own tools answered."""
    if message["role"] == "tool":
        return bool(message["requestor"] == "user")
    return message["role"] == "user" or "calls" not in message


def _turned(message: Message) -> dict[str, Any]:
    """A message as seen by the model that speaks as the user: to it, the agent is the user."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["id"], "content": message["content"]}
    if message["role"] == "assistant":
        return {"role": "user", "content": message["content"]}
    turned: dict[str, Any] = {"role": "assistant", "content": message["content"] or ""}
    if "calls" in message:
        turned["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in message["calls"]
        ]
    return turned
