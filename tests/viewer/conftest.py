from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indices made by the tests stay out of the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PAW_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of the real engine that kept every episode of every update."""
    pytest.importorskip("torch")
    from paw_train.engines.local import train_from_recipe

    out = tmp_path_factory.mktemp("runs")
    overrides = [f"out={out}", "record.every=1", "record.groups=2"]
    return train_from_recipe("smoke", overrides, quiet=True)
