from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from servers import RunningServer


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts servers that are gone after the test."""
    running: list[RunningServer] = []

    def start(*arguments: str, **settings: Any) -> RunningServer:
        running.append(RunningServer(*arguments, **settings))
        return running[-1]

    yield start
    for server in running:
        server.kill()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()
