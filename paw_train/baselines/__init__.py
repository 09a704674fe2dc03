"""Agents to compare with: prompting methods, and the ends of the scale.

One file an agent; ``agents()`` lists them.
"""

from __future__ import annotations

from paw_train.baselines.protocol import Agent
from paw_train.baselines.registry import agent_class, agents, make_agent

__all__ = ["Agent", "agent_class", "agents", "make_agent"]
