"""Many clients at once, torn from their connections, while workers are killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from .conftest import is_alive, wait_until

sys.path.insert(0, str(Path(__file__).parent))
import troubles  # noqa: F401  (clients play the same environments beside)


def test_every_answer_is_for_its_owner_and_nothing_is_left(serve: Any, bench: Any) -> None:
    gateway = serve("--workers", "2", "--session-minutes", "0.2", "--drain-seconds", "5")
    storm = bench.Storm(
        (gateway.port, gateway.process.pid), "tests/Dice-v0", sessions=160, clients=8,
        seconds=120, kill_every=0.3,
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
    wait_until(lambda: not any(map(is_alive, workers)), "the workers are gone", 10)
