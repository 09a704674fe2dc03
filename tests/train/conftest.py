"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that failed is sent again at once."""
    monkeypatch.setattr("paw_train.policies.endpoint.transport.FIRST_WAIT", 0.01)


@pytest.fixture(scope="module")
def policy() -> Any:
    """The one of ``hostile``."""
    import hostile

    return hostile.tiny_policy()


@pytest.fixture
def on_forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder, with the environment of ``fork``."""
    import fork

    monkeypatch.chdir(tmp_path)
    with fork.registered():
        yield


@pytest.fixture
def server() -> Iterator[Any]:
    """An endpoint whose faults and behaviour can be set."""
    import fake_endpoint

    with fake_endpoint.FakeEndpoint() as running:
        yield running
