"""Real Ray, vLLM and DeepSpeed on a CPU: runs by recipe (make test-openrlhf)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("PAW_CLUSTER_TESTS"), reason="a cluster is started: make test-openrlhf"
    ),
]
PROGRAM = Path(__file__).parent / "cpu" / "run_on_cpu.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this file are; they share a tiny model."""
    return tmp_path_factory.mktemp("cluster")


def _run(out: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(out), *overrides],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def _metrics(out: Path, name: str) -> list[dict[str, Any]]:
    lines = (out / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_in_dialogues_trains_and_goes_on_where_it_stopped(out: Path) -> None:
    first = _run(out, "name=grpo", "updates=2", "evaluation.every=0", "checkpoint_every=1")
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    metrics = _metrics(out, "grpo")
    assert [row["update"] for row in metrics] == [0, 1]
    for row in metrics:
        assert row["failed_episodes"] == 0
        assert row["selected_share"] == pytest.approx(0.75, abs=0.1)
        assert row["wm_term"] > 0
        assert row["grad_norm"] > 0
        # at the first optimiser step the policy is the one that sampled
        assert row["ratio_mean"] == pytest.approx(1.0, abs=0.2)
        assert row["logprob_gap"] < 0.1
    assert (out / "grpo" / "checkpoints" / "model" / "config.json").exists()
    again = _run(out, "name=grpo", "updates=2", "evaluation.every=0", "checkpoint_every=1")
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert _metrics(out, "grpo") == metrics


def test_a_broken_weight_update_stops_the_run(out: Path) -> None:
    broken = _run(
        out,
        "name=broken",
        "updates=2",
        "evaluation.every=0",
        PAW_BREAK_SYNC="model.embed_tokens.weight",
    )
    assert broken.returncode != 0
    assert "vLLM engine 0 does not have the trained weights" in broken.stdout + broken.stderr
    assert not (out / "broken" / "checkpoints" / "model" / "config.json").exists()
