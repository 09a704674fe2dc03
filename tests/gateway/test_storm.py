"""Many clients at once, torn from their connections or killed, while workers are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from servers import wait_until

from .conftest import is_alive

sys.path.insert(0, str(Path(__file__).parent))
import troubles  # noqa: F401  (clients play the same environments beside)


def test_every_answer_is_for_its_owner_and_nothing_is_left(serve: Any, bench: Any) -> None:
    gateway = serve("--workers", "2", "--session-minutes", "0.5", "--drain-seconds", "5")
    storm = bench.Storm(
        (gateway.port, gateway.process.pid), "tests/Dice-v0", sessions=160, clients=8,
        seconds=600, kill_every=0.3,
    )  # fmt: skip
    asyncio.run(storm.run())
    assert not storm.problems
    counts = storm.counts
    assert counts["opened"] == 160 and counts["answers 200"] > 300 and counts["trespasses"] > 20
    assert counts["workers killed"] > 0 and counts["clients torn away"] > 0
    wait_until(lambda: gateway.ask("GET", "/health")[1]["sessions"] == 0, "the rest expires")
    assert gateway.ask("GET", "/health")[1]["pending"] == 0
    workers = gateway.workers()
    assert gateway.stop(signal.SIGTERM)[0] == 0
    wait_until(lambda: not any(map(is_alive, workers)), "the workers are gone")


def test_killed_clients_leave_nothing_and_disturb_nobody(serve: Any) -> None:
    gateway = serve("--workers", "2", "--session-minutes", "0.2", "--drain-seconds", "5")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1"}
    rng = random.Random(0)

    def play(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(here / "player.py"), gateway.url, str(seed)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )

    def kill(player: subprocess.Popen[str]) -> None:
        """Somewhere in its fifth episode; until there it saw no difference."""
        assert player.stdout is not None
        lines = [player.stdout.readline() for _ in range(4)]
        if not all(lines):
            pytest.fail(f"the client ended by itself: {player.communicate()[1]}")
        time.sleep(rng.uniform(0, 0.05))
        player.send_signal(signal.SIGKILL)
        assert player.wait() == -signal.SIGKILL

    survivor, *others = [play(seed) for seed in range(4)]
    for round_ in range(3):
        for number, player in enumerate(others):
            kill(player)
            others[number] = play(10 * (round_ + 1) + number)
    for player in [*others, survivor]:
        kill(player)
    wait_until(lambda: gateway.ask("GET", "/health")[1]["sessions"] == 0, "their sessions expire")
    workers = gateway.workers()
    assert gateway.stop(signal.SIGTERM)[0] == 0
    wait_until(lambda: not any(map(is_alive, workers)), "the workers are gone")
