"""Agents to compare with: prompting methods, and the ends of the scale; one file per method.

A file of this folder registers its agents; another package names its class under the entry-point group
``paw_train.agents``, by the agent's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from paw_gym.internals.registry import import_modules
from paw_train.agents.protocol import AGENTS, Agent, Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import Policy
from paw_train.settings.rollout import RolloutSettings

__all__ = [
    "AGENTS",
    "Agent",
    "Answer",
    "Responder",
    "TurnAgent",
    "View",
    "agent_class",
    "make_agent",
]

import_modules(__name__)


def agent_class(name: str) -> type[Agent]:
    """An agent by name; raises ``ValueError`` if there is none, or what is registered is not one."""
    found = AGENTS[name]
    if not (inspect.isclass(found) and issubclass(found, Agent)):
        raise ValueError(
            f"{name!r} is registered as an agent, but {found!r} is not a subclass of "
            "paw_train.agents.Agent."
        )
    if found.name != name:  # results are recorded under the class's own
        raise ValueError(
            f"The agent {found.__module__}.{found.__qualname__} is registered as {name!r}, but its "
            f"`name` is {found.name!r}: give it one name."
        )
    return found


def make_agent(
    name: str,
    policy: Policy | None,
    rollout: RolloutSettings | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Agent:
    """An agent from its name and plain settings; raises ``ValueError`` if one of them makes no sense."""
    cls = agent_class(name)
    return cls(policy, rollout, cls.Settings.read(settings or {}, "agent"))
