"""How a model acts: by tags in its text, or by native tool calls; and where its thought comes from.

Agents read and keep text in tags, whatever the model sent: a tool call becomes the tagged action that
it means, and a thought that a server gives apart from the text becomes the reasoning block that the
prompt asks for. In the other direction a dialogue is sent as the model knows it: its tagged answers as
tool calls, the environment's observations as their results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paw_gym.prompts import PromptTemplate
from paw_train.rollouts.policy import Message, Request, Response

FORMATS = ("tags", "tools")
TRUNCATED = "truncated"
"""the problem of an answer that reached ``rollout.max_response_tokens``"""
_ACT, _ARGUMENT = "act", "action"
_INSTEAD = (
    " Do not write these action tags, though: act by calling the tool {tools} exactly once, with what "
    "would stand between the tags as its argument."
)


@dataclass(frozen=True)
class ActionForm:
    """The form of answer that a prompt template and a format (``tags`` or ``tools``) ask for."""

    template: PromptTemplate
    format: str = "tags"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"agent.action_format is 'tags' or 'tools', got {self.format!r}.")

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The functions that are offered, in OpenAI's tools schema; none for ``tags``.

        A tag of the environment's own (``search``, ``answer``) is a tool; where actions are free text
        there is one tool, ``act``.
        """
        if self.format == "tags":
            return ()
        tags = self.template.own_tags
        if tags:
            return tuple(_tool(tag, tag, f"Acts as <{tag}>...</{tag}> does.") for tag in tags)
        return (_tool(_ACT, _ARGUMENT, "Takes one action in the environment."),)

    def request(self, request: Request) -> Request:
        """What is sent for an agent's request for an action."""
        if self.format == "tags":
            return request
        messages = self._as_tool_calls(request.messages)
        return replace(request, messages=messages, ids=None, tools=self.tools)

    def read(self, response: Response) -> str:
        """The text that the environment reads, in tags, whatever form the response came in."""
        text, thought = response.text, response.reasoning
        if self.format == "tools" and response.tool_calls:
            thought, text = thought or text, self._action_of(response.tool_calls[0])
        tag = self.template.think_tag
        if tag is None or f"<{tag}>" in text:
            return text
        if thought is None and not response.tool_calls:
            return text
        return f"<{tag}>{thought or ''}</{tag}>{text}"

    def understands(self, call: Mapping[str, Any]) -> bool:
        """Whether a call is one of a tool that was offered, with its argument."""
        return bool(self._action_of(call))

    def _action_of(self, call: Mapping[str, Any]) -> str:
        """A tool call as a tagged action; empty: see ``understands``."""
        name, own = str(call["name"]), self.template.own_tags
        try:
            arguments = json.loads(call["arguments"] or "{}")
        except json.JSONDecodeError:
            return ""
        known = name in own if own else name == _ACT
        if not known or not isinstance(arguments, dict):
            return ""
        action = arguments.get(name if own else _ARGUMENT)
        if not isinstance(action, str):
            return ""
        tag = name if own else self.template.action_tag
        return f"<{tag}>{action}</{tag}>"

    def _as_tool_calls(self, messages: Sequence[Message]) -> list[Message]:
        """A dialogue in tags as one of tool calls and their results."""
        sent: list[Message] = []
        called: str | None = None
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                calling = self._call_message(str(message["content"]), f"call_{number}")
                called = None if calling is None else f"call_{number}"
                sent.append(message if calling is None else calling)
            elif called is not None:
                content = message["content"]
                sent.append({"role": "tool", "tool_call_id": called, "content": content})
                called = None
            else:
                sent.append(message)
        return sent

    def _call_message(self, text: str, name: str) -> dict[str, Any] | None:
        """A tagged answer as a message with a tool call; ``None``: there is no action in it."""
        action = self.template.read_response(text).action
        if not action:
            return None
        function, argument, value = _ACT, _ARGUMENT, action
        for tag in self.template.own_tags:
            if action.startswith(f"<{tag}>"):
                function = argument = tag
                value = action.removeprefix(f"<{tag}>").removesuffix(f"</{tag}>")
        call = {"name": function, "arguments": json.dumps({argument: value})}
        think = self.template.think_tag
        thought = text.partition(f"<{think}>")[2].rpartition(f"</{think}>")[0] if think else ""
        return {
            "role": "assistant",
            "content": thought.strip() or None,
            "tool_calls": [{"id": name, "type": "function", "function": call}],
        }


def ask_for_tools(template: PromptTemplate) -> PromptTemplate:
    """The template with a prompt that asks for tool calls instead of tags.

    Raises:
        ValueError: the template has no ``{ask}``, where it describes the form of an answer.
    """
    if "{ask}" not in template.first:
        raise ValueError(
            f"agent.action_format=tools: template {template.name!r} has no {{ask}}, so its prompt cannot "
            "ask for tool calls. Choose another (env.template=NAME), or agent.action_format=tags."
        )
    names = " or ".join(f"`{name}`" for name in template.own_tags or (_ACT,))
    instead = _INSTEAD.replace("{tools}", names)
    directly = template.ask_directly
    return replace(
        template,
        ask=template.ask + instead,
        ask_directly=None if directly is None else directly + instead,
    )


def _tool(name: str, argument: str, description: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def problem_of(response: Response, form: ActionForm) -> str | None:
    """Why an answer is no action, where its text does not show it.

    One of ``truncated``, ``tool call``, ``unknown tool``, ``refusal``, ``content filter``, ``empty``, or
    ``None``.
    """
    if response.finish_reason == "length":
        return TRUNCATED
    if response.tool_calls and form.format == "tags":
        return "tool call"
    if response.tool_calls and not form.understands(response.tool_calls[0]):
        return "unknown tool"
    if response.refusal:
        return "refusal"
    if response.finish_reason == "content_filter":
        return "content filter"
    return None if response.text.strip() or response.tool_calls else "empty"
