"""The way to full reward: the actions that a task expects, and what it wants the user to hear."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.envs.tau2.messages import Message, call_message, call_text, ending, tool_message
from paw_gym.envs.tau2.users import ScriptedUser, Situation, script_position, user_script

_HOW = {
    "assert_task_status": (
        "update_task_status",
        {"task_id": "task_id", "expected_status": "status"},
    )
}
"""what makes an assertion true, for tasks that expect a state and no action (one, in ``mock``)"""


def gold_actions(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The expected calls of agent and user, in order."""
    criteria = record.get("evaluation_criteria") or {}
    actions = criteria.get("actions")
    if actions:
        return [dict(action) for action in actions]
    made = []
    for assertion in criteria.get("env_assertions") or []:
        if assertion["func_name"] in _HOW:
            name, names = _HOW[assertion["func_name"]]
            given = assertion["arguments"]
            made.append({"name": name, "arguments": {names[key]: given[key] for key in names}})
    return made


def next_action(record: Mapping[str, Any], messages: Sequence[Message], begun_with: int) -> str:
    """Asks until the scripted user would have stated everything, acts as expected, then reports.

    Args:
        record: the task.
        messages: the conversation so far.
        begun_with: how many of them the task began with.
    """
    left = _not_taken(gold_actions(record), messages[begun_with:])
    if left and script_position(messages) < len(user_script(record)):
        return "Please tell me more."
    if left:
        return _as_action(left[0])
    information = (record.get("evaluation_criteria") or {}).get("communicate_info") or []
    return "It is done." + "".join(f" {text};" for text in information).rstrip(";")


def plan(
    record: Mapping[str, Any],
    messages: Sequence[Message],
    begun_with: int,
    user_tools: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Actions that end the episode with full reward if the user is the scripted one.

    Nothing is executed: who speaks next depends on what was said and called, not on the answers.

    Args:
        record: the task.
        messages: the conversation so far.
        begun_with: how many of them the task began with.
        user_tools: what the user can do.
    """
    imagined, actions = list(messages), []

    def add_call(role: str, name: str, arguments: Mapping[str, Any]) -> str:
        imagined.append(call_message(role, name, arguments, len(imagined)))
        imagined.append(tool_message(imagined[-1]["calls"][0]["id"], "", False, role))
        return ""

    def use(name: str, arguments: Mapping[str, Any]) -> str:
        return add_call("user", name, arguments)

    user, said = ScriptedUser(), ""
    while ending(said) is None:
        actions.append(next_action(record, imagined, begun_with))
        if actions[-1].startswith("{"):
            call = json.loads(actions[-1])
            add_call("assistant", call["name"], call["arguments"])
            continue
        imagined.append({"role": "assistant", "content": actions[-1]})
        said = user.reply(Situation(record, imagined, user_tools, use, 0))
        imagined.append({"role": "user", "content": said})
    return actions


def _as_action(action: Mapping[str, Any]) -> str:
    if action.get("requestor", "assistant") == "user":
        arguments = json.dumps(action["arguments"], ensure_ascii=False)
        return f"Please do this with your phone: {action['name']} {arguments}"
    return call_text(action["name"], action["arguments"])


def _calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("calls", [])]


def _not_taken(
    expected: Sequence[dict[str, Any]], messages: Sequence[Message]
) -> list[dict[str, Any]]:
    """The expected actions without the longest beginning of them that was taken in order."""
    taken = iter(_calls(messages))
    left = list(expected)
    while left and any(_same(left[0], call) for call in taken):
        left.pop(0)
    return left


def _same(expected: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    return bool(expected["name"] == call["name"] and expected["arguments"] == call["arguments"])
