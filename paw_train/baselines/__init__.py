"""Agents to compare with: prompting methods, and the ends of the scale.

One file an agent; ``AGENTS`` lists them.
"""

from __future__ import annotations

from paw_train.baselines.protocol import Agent
from paw_train.baselines.registry import AGENTS, agent_class, make_agent

__all__ = ["AGENTS", "Agent", "agent_class", "make_agent"]
