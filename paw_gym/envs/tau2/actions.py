"""Reading an action: a tool call, words for the user, or neither."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paw_gym.naming import did_you_mean

MAX_EXPRESSION = 1_000
"""characters of an expression to calculate"""
_FENCED = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """No action."""

    reason: str


def parse_action(action: str, tools: Mapping[str, Any]) -> Call | Say | Refused:
    """Reads an action.

    What begins with a brace is a tool call, ``{"name": ..., "arguments": {...}}`` (a Markdown fence
    around it is ignored); all other text is for the user.

    Args:
        action: the text.
        tools: by name.
    """
    text = action.strip()
    fenced = _FENCED.fullmatch(text)
    text = fenced.group(1) if fenced else text
    if not text:
        return Refused("it is empty")
    if not text.startswith("{"):
        return Say(text)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Refused(f"it is not valid JSON ({error})")
    return _call(value, tools)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _call(value: Mapping[str, Any], tools: Mapping[str, Any]) -> Call | Refused:
    name, arguments = value.get("name"), value.get("arguments", {})
    unknown = sorted(set(value) - {"name", "arguments"})
    if not isinstance(name, str):
        return Refused('"name" is not the name of a tool')
    if not isinstance(arguments, dict):
        return Refused('"arguments" is not a JSON object')
    if unknown:
        return Refused(f'it holds {unknown[0]!r} beside "name" and "arguments"')
    if name not in tools:
        return Refused(f"there is no tool {name!r}. {did_you_mean(name, tools)}")
    if name == "calculate":
        return _calculation(arguments)
    return Call(name, arguments)


def _calculation(arguments: Mapping[str, Any]) -> Call | Refused:
    # the package hands the expression to Python, where 9**9**9 runs for ever
    expression = arguments.get("expression")
    if isinstance(expression, str):
        if "**" in re.sub(r"\s", "", expression):
            return Refused("powers cannot be calculated")
        if len(expression) > MAX_EXPRESSION:
            return Refused(f"the expression is longer than {MAX_EXPRESSION} characters")
    return Call("calculate", arguments)
