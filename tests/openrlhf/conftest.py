"""What the tests of this folder share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made_up() -> Callable[[bool], list[Any]]:
    """Trajectories made up from random tokens, as in tests/train."""
    pytest.importorskip("torch")
    made: Callable[[bool], list[Any]] = _module(
        Path(__file__).parents[1] / "train" / "conftest.py"
    )._trajectories
    return made


@pytest.fixture
def one_rank() -> ModuleType:
    """The learning step of one rank, without a cluster."""
    pytest.importorskip("torch")
    return _module(Path(__file__).with_name("one_rank.py"))
