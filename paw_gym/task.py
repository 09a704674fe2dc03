"""Tasks and outcomes: the values that the author of an environment hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One task: what the agent is asked to do, and whatever the environment needs to set it up."""

    id: str
    instruction: str
    type: str = "default"
    """the class that results are broken down by"""
    data: Any = None
    """for the environment only; never shown to the agent"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of an environment, at the start and after an action."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    """ended by the environment's own rules, with success or not; the step budget does not count here"""
    success: bool = False
    score: float | None = None
    """quality in [0, 1]; ``None`` means 1 on success, else 0"""
    action_is_valid: bool = True
    admissible_actions: Sequence[str] | None = None
    """actions that would be accepted next; ``None`` if they cannot be listed"""
    info: Mapping[str, Any] = field(default_factory=dict)
    """more for ``info``; plain JSON values"""
    truncated: bool = False
    """ended by a limit that is not part of the task, such as the world's own clock; ignored if
    ``terminated`` is true"""
