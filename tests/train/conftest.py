"""Trajectories made up from random tokens, for tests of what an update computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from registries import registered_here


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that failed is sent again at once."""
    monkeypatch.setattr("paw_train.policies.endpoint.transport.FIRST_WAIT", 0.01)


@pytest.fixture
def made_up() -> Callable[[bool], list[Any]]:
    """A function (conversation mode?) -> two groups of two episodes of 1 to 3 steps."""
    pytest.importorskip("torch")
    from trajectories import made_up

    return made_up


@pytest.fixture
def own_environments() -> Iterator[None]:
    """Environments that a test registers are forgotten after it."""
    with registered_here():
        yield
