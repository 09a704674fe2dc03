from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from browser import CHROMIUM
from files import load
from servers import in_thread

ROOT = Path(__file__).resolve().parents[2]


made_up = load("benchmarks/viewer_run.py")


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of the real engine that kept every episode of every update."""
    from paw_train.training.local import train_from_recipe

    out = tmp_path_factory.mktemp("runs")
    overrides = [f"out={out}", "record.every=1"]
    return train_from_recipe("smoke", overrides, quiet=True)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of some 2,000 transitions."""
    folder = tmp_path_factory.mktemp("made") / "small"
    made_up.write_run(folder, 2_000, groups=2, group_size=4)
    return folder


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """``write_evaluation`` and the texts in it."""
    return load("tests/viewer/made_evaluation.py")


@pytest.fixture
def view() -> Iterator[Any]:
    """Serves a folder's pages, gives back their address; it is gone after the test."""
    pytest.importorskip("fastapi")
    from paw_train.viewer.app import create_app

    with contextlib.ExitStack() as running:
        yield lambda folder: running.enter_context(in_thread(create_app(folder)))


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Any]:
    """A tab of headless Chromium that notes errors and refused content."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    opened = load("tests/viewer/pages.py").Pages(tmp_path / "profile")
    opened.watch()
    yield opened
    opened.close()
