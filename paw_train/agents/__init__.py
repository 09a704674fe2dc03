"""Agents to compare with: prompting methods, and the ends of the scale; one file a method.

Another package names its class under the entry-point group ``paw_train.agents``, by the agent's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from paw_gym.internals.registry import Registry
from paw_train.agents.protocol import Agent, Answer, Responder, TurnAgent, View
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

_HERE = "paw_train.agents"
AGENTS: Registry[type[Agent]] = Registry(
    "agent",
    "paw_train.agents",
    {
        "best_of_n": f"{_HERE}.best_of_n:BestOfNAgent",
        "cot": f"{_HERE}.direct:ChainOfThoughtAgent",
        "expert": f"{_HERE}.direct:ExpertAgent",
        "likelihood": f"{_HERE}.likelihood:LikelihoodAgent",
        "plain": f"{_HERE}.direct:PlainAgent",
        "policy": f"{_HERE}.direct:PolicyAgent",
        "random": f"{_HERE}.direct:RandomAgent",
        "react": f"{_HERE}.react:ReactAgent",
        "react_paper": f"{_HERE}.react_paper:ReactPaperAgent",
        "reflexion": f"{_HERE}.reflexion:ReflexionAgent",
        "reflexion_paper": f"{_HERE}.reflexion_paper:ReflexionPaperAgent",
        "search_r1": f"{_HERE}.search_r1:SearchR1Agent",
        "self_consistency": f"{_HERE}.self_consistency:SelfConsistencyAgent",
    },
)
"""the agents by name; add yours with ``AGENTS.register``"""


def agent_class(name: str) -> type[Agent]:
    """An agent by name.

    Raises:
        ValueError: there is none (names the nearest), or what is registered under the name is not an
            agent of that name.
    """
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
    """An agent from its name and plain settings.

    Raises:
        ValueError: an unknown agent or setting (names the nearest), or one that makes no sense.
    """
    cls = agent_class(name)
    return cls(policy, rollout, cls.Settings.read(settings or {}, "agent"))
