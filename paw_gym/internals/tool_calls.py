"""Actions as native tool calls: the tools that stand for a template's tags, and episodes played with them.

Episodes keep their actions in tags. ``info["agent"]["tools"]`` of a step names the tools that its prompt
asks for instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paw_gym.internals.replies import split_thought

if TYPE_CHECKING:
    from paw_gym.transition import Episode

_ACT, _ARGUMENT = "act", "action"
_INSTEAD = (
    " Do not write these action tags, though: act by calling the tool {tools} exactly once, with what "
    "would stand between the tags as its argument."
)


def tool_names(own_tags: Sequence[str]) -> list[str]:
    """Each tag of the environment's own is a tool; if actions are free text, there is one tool, ``act``."""
    return list(own_tags) or [_ACT]


def instead_of_tags(names: Sequence[str]) -> str:
    """The sentence of a prompt that asks for calls of these tools."""
    return _INSTEAD.replace("{tools}", " or ".join(f"`{name}`" for name in names))


def argument_of(name: str) -> str:
    """The name of a tool's only argument."""
    return _ARGUMENT if name == _ACT else name


def tool_schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """The tools in OpenAI's schema."""
    return [_schema(name, argument_of(name)) for name in names]


def _schema(name: str, argument: str) -> dict[str, Any]:
    acts = "Takes one action in the environment."
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    description = acts if name == _ACT else f"Acts as <{name}>...</{name}> does."
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_for(action: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(name, arguments) of the call that stands for an action."""
    for name in names:
        if action.startswith(f"<{name}>"):
            return name, {name: action.removeprefix(f"<{name}>").removesuffix(f"</{name}>")}
    return _ACT, {_ARGUMENT: action}


def call_id(number: int) -> str:
    """An id of a call: nine letters and digits, the only form that Mistral takes."""
    return f"call{number:05d}"


def tools_of(episode: Episode) -> list[str]:
    """The names of the tools that an episode's actions called; none: they were written in tags."""
    agent = episode.transitions[0].info.get("agent", {}) if episode.transitions else {}
    return list(agent.get("tools", []))


def in_tags(episode: Episode) -> Episode:
    """The episode with prompts that ask for the tags in which its actions are written."""
    names = tools_of(episode)
    if not names:
        return episode
    asked = instead_of_tags(names)
    steps = [replace(t, prompt=t.prompt.replace(asked, "")) for t in episode.transitions]
    return replace(episode, transitions=steps)


def call_messages(episode: Episode, step: int) -> list[dict[str, Any]]:
    """The chat messages up to and including the answer at a step, with actions as tool calls, whose arguments
    are objects, as chat templates take them."""
    names, messages = tools_of(episode), episode.messages(step)
    messages.append({"role": "assistant", "content": episode.transitions[step].response})
    first = step - (len(messages) - 1) // 2  # in window mode there is only one prompt
    turned: list[dict[str, Any]] = []
    answered: dict[str, Any] | None = None
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            turned.append({**message, **answered} if answered else dict(message))
            answered = None
            continue
        action = episode.transitions[first + number // 2].action
        if not action:
            turned.append(dict(message))
            continue
        name, arguments = call_for(action, names)
        call = {"type": "function", "id": call_id(number)}
        turned.append(
            {
                "role": "assistant",
                "content": split_thought(message["content"])[0] or "",
                "tool_calls": [{**call, "function": {"name": name, "arguments": arguments}}],
            }
        )
        answered = {"role": "tool", "tool_call_id": call["id"], "name": name}
    return turned
