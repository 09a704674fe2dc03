"""A run that is asked to stop saves what it has and says how to go on (kills: test_kill.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def _train(out: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from paw_train.training.local import train_from_recipe; "
        "train_from_recipe('smoke', [f'out={sys.argv[1]}', 'checkpoint_every=1'])"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(out)],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _wait_for_updates(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    path = out / "smoke" / "metrics.jsonl"
    for _ in range(3000):
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended early:\n{process.communicate()[0]}")
        time.sleep(0.05)
    pytest.fail("the run made no progress")


@pytest.mark.slow
def test_interrupt_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    run = _train(tmp_path)
    _wait_for_updates(tmp_path, 1, run)
    run.send_signal(signal.SIGINT)
    output = run.communicate(timeout=600)[0]
    assert run.returncode == 0, output
    assert "goes on from here" in output or (tmp_path / "smoke" / "eval_after.json").exists()
    assert (tmp_path / "smoke" / "checkpoints" / "latest" / "state.pt").exists()
