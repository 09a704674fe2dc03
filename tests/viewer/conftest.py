from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from browser import CHROMIUM
from files import load

ROOT = Path(__file__).resolve().parents[2]


made_up = load("benchmarks/viewer_run.py")


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of the real engine that kept every episode of every update."""
    pytest.importorskip("torch")
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
    """Starts `paw view` on a folder, gives back its address; it is gone after the test."""
    pytest.importorskip("fastapi")

    running: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "paw_train.cli", "view", str(folder)]
        process = subprocess.Popen(
            [*command, "--no-open", "--no-token", "--port", str(port)], stderr=subprocess.DEVNULL
        )
        running.append(process)
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            assert process.poll() is None, "paw view ended"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):
                return address
            time.sleep(0.1)
        raise RuntimeError("the viewer did not answer within two minutes")

    yield start
    for process in running:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Any]:
    """A tab of headless Chromium that notes errors and refused content."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    opened = load("tests/viewer/pages.py").Pages(tmp_path / "profile")
    opened.watch()
    yield opened
    opened.close()
