from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM
from files import load
from servers import in_thread, wait_until
from starlette.testclient import TestClient

from .pages import Pages

Ask = Callable[..., Any]
Opened = Callable[[Path], Ask]
ADDRESS = "http://127.0.0.1"
made_up = load("benchmarks/viewer_run.py")


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from paw_train.training.local import train_from_recipe

    out = tmp_path_factory.mktemp("runs")
    return train_from_recipe("smoke", [f"out={out}", "record.every=1"], quiet=True)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of some 2,000 transitions."""
    folder = tmp_path_factory.mktemp("made") / "small"
    made_up.write_run(folder, 2_000, groups=2, group_size=4)
    return folder


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a viewer of a folder; what is given back asks it, once it has read its first run."""
    from paw_train.viewer.app import create_app

    with contextlib.ExitStack() as running:

        def open_run(folder: Path) -> Ask:
            client = running.enter_context(TestClient(create_app(folder), ADDRESS))

            def ask(name: str, status: int = 200, **parameters: Any) -> Any:
                answer = client.get(f"/api/{name}", params=parameters)
                assert answer.status_code == status, answer.text
                return answer.json()

            name = ask("runs")["runs"][0]["name"]
            wait_until(lambda: not ask("pulse", run=name)["indexing"])
            ask.client = client  # type: ignore[attr-defined]
            return ask

        yield open_run


@pytest.fixture
def view() -> Iterator[Any]:
    """Serves a folder's pages, gives back their address; it is gone after the test."""
    from paw_train.viewer.app import create_app

    with contextlib.ExitStack() as running:
        yield lambda folder: running.enter_context(in_thread(create_app(folder)))


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with contextlib.closing(Pages(tmp_path / "profile")) as opened:
        opened.watch()
        yield opened
