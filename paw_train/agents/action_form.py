"""Forms of a model's action: tags in its text, or native tool calls; and the source of its thought.

Agents read and keep text in tags, whatever the model sent: a tool call becomes the tagged action that
it means, and a thought that a server gives apart from the text becomes the reasoning block that the
prompt asks for. In the other direction a dialogue is sent as the model knows it: its tagged answers as
tool calls, the environment's observations as their results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paw_gym.internals.replies import split_thought, tool_argument, tool_name, written_calls
from paw_gym.internals.tool_calls import (
    argument_of,
    call_for,
    call_id,
    instead_of_tags,
    tool_names,
    tool_schemas,
)
from paw_gym.prompts import PromptTemplate
from paw_train.rollouts.policy import Message, Request, Response

FORMATS = ("tags", "tools")
TRUNCATED = "truncated"
"""the problem of an answer that reached ``rollout.max_response_tokens``"""
_ID = re.compile(r"[\w.:-]{9,64}")
"""ids of calls that are sent back as a server gave them; others become ``tool_calls.call_id``"""


@dataclass(frozen=True)
class ActionForm:
    """The form of answer that a prompt template and a format (``tags`` or ``tools``) ask for."""

    template: PromptTemplate
    format: str = "tags"

    @property
    def tool_names(self) -> list[str]:
        """The functions that are offered; none for ``tags``."""
        return [] if self.format == "tags" else tool_names(self.template.own_tags)

    def request(self, request: Request, said: Sequence[Response] = ()) -> Request:
        """The request that is sent for an agent's own, after the episode's earlier responses (``said``)."""
        if self.format == "tags":
            return request
        messages = self._as_tool_calls(request.messages, list(said))
        return replace(request, messages=messages, ids=None, tools=tool_schemas(self.tool_names))

    def read(self, response: Response) -> str:
        """The text that the environment reads, in tags, whatever form the response came in."""
        text, thought = response.text, response.reasoning
        call = self.call_of(response)
        if call is not None:
            inside, rest = split_thought(text)
            thought = thought or inside or (rest if response.tool_calls else "")
            text = self._action_of(call)
        tag = self.template.think_tag
        if tag is None or f"<{tag}>" in text or (thought is None and call is None):
            return text
        return f"<{tag}>{thought or ''}</{tag}>{text}"

    def call_of(self, response: Response) -> Mapping[str, Any] | None:
        """The tool call in a response, native or written into its text; it counts if tools are offered."""
        if self.format == "tags":
            return None
        return next(iter(response.tool_calls or written_calls(response.text)), None)

    def understood(self, call: Mapping[str, Any]) -> tuple[str, str] | None:
        """(name, argument) of a call of a tool that was offered; ``None``: it is no such call."""
        name = tool_name(call["name"])
        offered = name in self.tool_names
        value = tool_argument(call["arguments"], argument_of(name)) if offered else None
        return None if value is None else (name, value)

    def _action_of(self, call: Mapping[str, Any]) -> str:
        """A tool call as a tagged action; empty: there is none in it."""
        read = self.understood(call)
        if read is None:
            return ""
        tag = read[0] if self.template.own_tags else self.template.action_tag
        return f"<{tag}>{read[1]}</{tag}>"

    def _as_tool_calls(self, messages: Sequence[Message], said: list[Response]) -> list[Message]:
        own = _paired(messages, said)
        sent: list[Message] = []
        called: set[str] = set()
        open_call: str | None = None
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                calling = self._call_message(str(message["content"]), own.get(number))
                open_call = None
                if calling is not None:
                    (call,) = calling["tool_calls"]
                    if call["id"] in called or not _ID.fullmatch(call["id"]):
                        call["id"] = call_id(number)
                    open_call = call["id"]
                    called.add(open_call)
                sent.append(message if calling is None else calling)
            elif open_call is not None:
                content = message["content"]
                sent.append({"role": "tool", "tool_call_id": open_call, "content": content})
                open_call = None
            else:
                sent.append(message)
        return sent

    def _call_message(self, text: str, own: Response | None) -> dict[str, Any] | None:
        """A tagged answer as a message with a tool call; ``None``: there is no action in it."""
        action = self.template.read_response(text).action
        if not action:
            return None
        name, arguments = call_for(action, self.tool_names)
        function = {"name": name, "arguments": json.dumps(arguments)}
        own_id = str(own.tool_calls[0].get("id", "")) if own and own.tool_calls else ""
        call = {"id": own_id, "type": "function", "function": function}
        # some servers refuse null beside a call
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        if own is not None and own.reasoning_field is not None:
            return message | {own.reasoning_field: own.reasoning}
        return message | {"content": split_thought(text, self.template.think_tag)[0] or ""}


def _paired(messages: Sequence[Message], said: list[Response]) -> dict[int, Response]:
    """The response behind each assistant message; a dialogue may have forgotten its oldest ones."""
    found = {}
    for number in reversed(range(len(messages))):
        if messages[number]["role"] == "assistant":
            texts = [response.text for response in said]
            if messages[number]["content"] in texts:
                last = len(texts) - 1 - texts[::-1].index(messages[number]["content"])
                found[number] = said[last]
                del said[last:]
    return found


def ask_for_tools(template: PromptTemplate) -> PromptTemplate:
    """The template with a prompt that asks for tool calls instead of tags."""
    if "{ask}" not in template.first:
        raise ValueError(
            f"agent.action_format=tools: template {template.name!r} has no {{ask}}, so its prompt cannot "
            "ask for tool calls. Choose another (env.template=NAME), or agent.action_format=tags."
        )
    instead = instead_of_tags(tool_names(template.own_tags))
    directly = template.ask_directly
    return replace(
        template,
        ask=template.ask + instead,
        ask_directly=None if directly is None else directly + instead,
    )


def problem_of(response: Response, form: ActionForm) -> str | None:
    """Why an answer is not an action, if its text does not show it.

    One of ``truncated``, ``tool call``, ``unknown tool``, ``tool arguments``, ``refusal``,
    ``content filter``, ``empty``, or ``None``.
    """
    if response.finish_reason == "length":
        return TRUNCATED
    acts = bool(form.template.read_response(response.text).action)
    if form.format == "tags" and (
        response.tool_calls or (not acts and written_calls(response.text))
    ):
        return "tool call"
    call = form.call_of(response)
    if call is not None and form.understood(call) is None:
        return "tool arguments" if tool_name(call["name"]) in form.tool_names else "unknown tool"
    if response.refusal:
        return "refusal"
    if response.finish_reason == "content_filter":
        return "content filter"
    return None if response.text.strip() or response.tool_calls else "empty"
