"""The configured environment on one split, alone or many at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface, make_agent_env
from paw_train.settings import EnvSettings
from paw_train.settings.secrets import with_secrets


def make_pool(env: EnvSettings, split: str, groups: int, group_size: int, seed: int) -> EnvPool:
    """A pool of the configured environment on one split."""
    return EnvPool(agent_env_maker(env, split), groups, group_size, seed=seed)


def agent_env_maker(
    env: EnvSettings, split: str, interface: Mapping[str, Any] | None = None
) -> Callable[[], AgentInterface]:
    """A function that makes the configured agent environment.

    Args:
        env: the environment and how an agent meets it.
        split: of the tasks, for environments that have splits.
        interface: settings of ``make_agent_env`` that differ from the configured ones.
    """
    agent: dict[str, Any] = {
        "history_length": env.history_length,
        "require_admissible": env.require_admissible,
        "mode": env.mode,
    }
    if env.reward == "environment":
        agent["success_reward"] = None
    if env.invalid_penalty is not None:
        agent["invalid_penalty"] = env.invalid_penalty
    if env.template is not None:
        agent["template"] = env.template
    agent |= interface or {}
    kwargs = with_secrets(env.kwargs)
    if takes_split(env.id):
        kwargs["split"] = split
    return lambda: make_agent_env(env.id, **agent, **kwargs)


def takes_split(env_id: str) -> bool:
    """Whether an environment has splits of its tasks; one that is not registered yet may have."""
    parameters = constructor_parameters(env_id)
    return parameters is None or "split" in parameters


def panel_name(env_id: str, split: str, tasks: int) -> str:
    """What a panel without a name of its own is called; it names a split only where there are splits."""
    return f"{env_id}/{split}/{tasks}" if takes_split(env_id) else f"{env_id}/{tasks}"


def constructor_parameters(env_id: str) -> Mapping[str, inspect.Parameter] | None:
    """The named parameters of an environment's constructor; ``None``: the environment is unknown."""
    from gymnasium.envs.registration import load_env_creator, registry

    spec = registry.get(env_id)
    if spec is None or spec.entry_point is None:
        return None
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    # a class may choose what it makes in __new__, which then takes anything
    is_class = isinstance(creator, type)
    signature = inspect.signature(creator.__init__ if is_class else creator)
    parameters = {k: p for k, p in signature.parameters.items() if k != "self"}
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None if is_class else {}
    return parameters


def own_history_length(env_id: str) -> int | None:
    """How many past steps the environment itself wants in a prompt; ``None``: all."""
    from gymnasium.envs.registration import load_env_creator, registry

    creator: Any = registry[env_id].entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    agent = getattr(creator, "agent", None)
    return agent.history_length if agent is not None else 2
