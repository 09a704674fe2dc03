"""``benchmarks/worlds.py``: every environment is in it, and what it measures is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from paw_gym.registration import _OWN

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "worlds.py"


def test_it_names_every_environment() -> None:
    assert set(re.findall(r'World\("([^"]+)"', SCRIPT.read_text())) == set(_OWN)


def test_two_worlds_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "worlds.json"
    command = [sys.executable, str(SCRIPT), "--worlds", "toy_text", "sokoban"]
    done = subprocess.run(
        [*command, "--seconds", "0.05", "--json", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == ["toy_text", "sokoban"]
    assert found["toy_text"]["original_steps_per_s"] > 0
    assert found["sokoban"]["original_steps_per_s"] is None
    for row in found.values():
        assert row["steps_per_s"] > 0 and row["memory_mb"]["process"] > 10
