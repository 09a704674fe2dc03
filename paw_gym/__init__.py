"""Text environments under the Gymnasium API that emit complete transitions ``(h_t, a_t, r_t, o_{t+1})``.

Importing this package is cheap: names are loaded on first use, and nothing here imports torch.
Environments are registered with Gymnasium on import (see ``paw_gym.registration``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "TextEnv": "core",
    "Task": "core",
    "TaskSet": "core",
    "Outcome": "core",
    "AgentDefaults": "core",
    "UnicodeText": "spaces",
    "Transition": "transition",
    "Episode": "transition",
    "PromptTemplate": "prompts",
    "AgentInterface": "wrappers",
    "RecordTransitions": "wrappers",
    "make_agent_env": "wrappers",
    "register_text_env": "registration",
    "text_env_ids": "registration",
    "EnvPool": "pool",
    "check_text_env": "contract",
    "make_remote": "remote",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from paw_gym.contract import check_text_env
    from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv
    from paw_gym.pool import EnvPool
    from paw_gym.prompts import PromptTemplate
    from paw_gym.registration import register_text_env, text_env_ids
    from paw_gym.remote import make_remote
    from paw_gym.spaces import UnicodeText
    from paw_gym.transition import Episode, Transition
    from paw_gym.wrappers import AgentInterface, RecordTransitions, make_agent_env


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"paw_gym.{_HOME[name]}"), name)
    raise AttributeError(f"module 'paw_gym' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


from paw_gym import registration as _registration  # noqa: E402

_registration.register_all()
