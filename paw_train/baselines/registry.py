"""Which agents there are: those in this folder, and those that other packages announce.

Another package names its class under the entry-point group ``paw_train.agents``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from types import MappingProxyType
from typing import Any

from paw_gym.naming import did_you_mean
from paw_train.baselines.protocol import Agent
from paw_train.rollouts.policy import Policy
from paw_train.settings.rollout import RolloutSettings

PLUGIN_GROUP = "paw_train.agents"


@lru_cache(maxsize=1)
def agents() -> Mapping[str, type[Agent]]:
    """The agents by name, sorted."""
    import paw_train.baselines as package

    found: dict[str, type[Agent]] = {}
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if (
                inspect.isclass(value)
                and issubclass(value, Agent)
                and not inspect.isabstract(value)
            ):
                found[value.name] = value
    for plugin in metadata.entry_points(group=PLUGIN_GROUP):
        loaded = plugin.load()
        found[loaded.name] = loaded
    return MappingProxyType({name: found[name] for name in sorted(found)})


def agent_class(name: str) -> type[Agent]:
    """An agent by name.

    Raises:
        ValueError: there is none; names the nearest.
    """
    if name not in agents():
        raise ValueError(f"There is no agent {name!r}. {did_you_mean(name, agents())}")
    return agents()[name]


def make_agent(
    name: str,
    policy: Policy | None,
    rollout: RolloutSettings | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Agent:
    """An agent from its name and plain settings.

    Args:
        name: one of ``agents()``.
        policy: answers; ``None`` for agents that need no model.
        rollout: sampling and limits.
        settings: ``agent.KEY=VALUE`` as a dictionary.

    Raises:
        ValueError: an unknown agent or setting (names the nearest), or one that makes no sense.
    """
    cls = agent_class(name)
    return cls(policy, rollout, cls.Settings.read(settings or {}, "agent"))
