"""Trajectories made up from random tokens, for tests of what an update computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def made_up() -> Callable[[bool], list[Any]]:
    """A function (conversation mode?) -> two groups of two episodes of 1 to 3 steps."""
    pytest.importorskip("torch")
    from trajectories import made_up

    return made_up


@pytest.fixture
def own_environments() -> Iterator[None]:
    """Environments that a test registers are forgotten after it."""
    import gymnasium as gym

    from paw_gym import registration

    registries = (registration._REGISTERED, gym.registry)
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(kept)  # type: ignore[attr-defined]
