"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from files import load


@pytest.fixture
def made_up() -> Callable[[bool], list[Any]]:
    """Trajectories made up from random tokens, as in tests/train."""
    pytest.importorskip("torch")
    from trajectories import made_up

    return made_up


@pytest.fixture
def one_rank() -> ModuleType:
    """The learning step of one rank, without a cluster."""
    pytest.importorskip("torch")
    return load("tests/openrlhf/one_rank.py")
