"""The conversation as plain values, and as the package's own messages.

A message is a dictionary: ``role`` (``assistant``, ``user``, ``tool``) and ``content``, or ``calls`` in
its place: a list of ``{"id", "name", "arguments"}``. A tool's message has ``id``, ``requestor`` and
``error`` as well. Plain values are saved, compared and copied without the package, whose messages
carry the time of day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.envs.tau2.package import tau2_module
from paw_gym.tool_calls import call_id

Message = dict[str, Any]
GREETING: Message = {"role": "assistant", "content": "Hi! How can I help you today?"}
"""what the package lets every agent say first"""
STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""with which a user ends the conversation; the package's own marks"""
ENDINGS = {STOP: "user_stop", TRANSFER: "transfer", OUT_OF_SCOPE: "out_of_scope"}


def call_message(role: str, name: str, arguments: Mapping[str, Any], number: int) -> Message:
    """A message that calls a tool; ``number`` makes its id, of a form that every server takes."""
    call = {"id": call_id(number), "name": name, "arguments": dict(arguments)}
    return {"role": role, "content": None, "calls": [call]}


def tool_message(call: str, content: str, error: bool, requestor: str) -> Message:
    """A tool's answer to the call of that id."""
    return {
        "role": "tool",
        "id": call,
        "content": content,
        "error": error,
        "requestor": requestor,
    }


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
        message["calls"] = [
            {"id": c["id"], "name": c["name"], "arguments": c["arguments"]}
            for c in record["tool_calls"]
        ]
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


def without_marks(text: str) -> str:
    """The words without the marks that end a conversation."""
    for mark in ENDINGS:
        text = text.replace(mark, "")
    return text.strip()
