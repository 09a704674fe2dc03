"""A run that is killed goes on and computes what it would have computed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
TIMING = {"time", "seconds_rollout", "seconds_train"}


def _train(out: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from paw_train.engines.local import train_from_recipe; "
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


def _metrics(out: Path) -> list[dict[str, float]]:
    lines = (out / "smoke" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


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
def test_kill_and_resume_gives_the_same_losses(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole")
    output = whole.communicate(timeout=600)[0]
    assert whole.returncode == 0, output

    cut = _train(tmp_path / "cut")
    _wait_for_updates(tmp_path / "cut", 2, cut)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    assert not (tmp_path / "cut" / "smoke" / "eval_after.json").exists()
    resumed = _train(tmp_path / "cut")
    output = resumed.communicate(timeout=600)[0]
    assert resumed.returncode == 0, output
    assert "Resuming after update" in output

    assert _metrics(tmp_path / "cut") == _metrics(tmp_path / "whole")
    for name in ("eval_before", "eval_after"):
        a, b = (
            json.loads((tmp_path / run / "smoke" / f"{name}.json").read_text())
            for run in ("whole", "cut")
        )
        assert a["successes"] == b["successes"]
        assert a["fingerprint"] == b["fingerprint"]
    assert (tmp_path / "cut" / "smoke" / "report.html").exists()


@pytest.mark.slow
def test_interrupt_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    run = _train(tmp_path)
    _wait_for_updates(tmp_path, 1, run)
    run.send_signal(signal.SIGINT)
    output = run.communicate(timeout=600)[0]
    assert run.returncode == 0, output
    assert "goes on from here" in output or len(_metrics(tmp_path)) == 4
    assert (tmp_path / "smoke" / "checkpoints" / "latest" / "state.pt").exists()
