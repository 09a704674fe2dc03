"""Real Ray, vLLM and DeepSpeed on a CPU: runs by recipe (make test-openrlhf).

Four runs cover both algorithms and context modes, both ZeRO stages, one and two ranks, packing on and
off, each of them with the others' two values.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from programs import said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("PAW_CLUSTER_TESTS"), reason="a cluster is started: make test-openrlhf"
    ),
]
PROGRAM = Path(__file__).parent / "cpu" / "run_on_cpu.py"
PAW = ("-m", "paw_train.cli")
REFERENCE = "objective.kl_coef=0.01"
PACKED = (
    "openrlhf.extra={vllm.sync_backend: gloo, vllm.enforce_eager: true, vllm.enable_prefix_caching: false, "
    "ds.packing_samples: true}"
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this file are; they share a tiny model."""
    return tmp_path_factory.mktemp("cluster")


class Run:
    """A run in a process of its own, whose output goes to a file."""

    def __init__(self, out: Path, *overrides: str, **environment: str) -> None:
        self.log = out / f"{len(list(out.glob('*.log')))}.log"
        with self.log.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(out), *overrides],
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self, fails: bool = False) -> str:
        try:
            code = self.process.wait(timeout=1500)
        finally:
            self.process.kill()
        assert (code != 0) == fails, f"exit code {code}\n{self.printed()[-6000:]}"
        return self.printed()

    def kill_at(self, mark: Path) -> None:
        """Kills it, all of its processes, when it has come to the planned place."""
        import psutil

        while not mark.exists():
            assert self.process.poll() is None, self.printed()[-6000:]
            time.sleep(0.5)
        tree = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _run(out: Path, *overrides: str, **environment: str) -> str:
    return Run(out, *overrides, **environment).finish()


def _records(out: Path, name: str, kind: str = "metrics") -> list[dict[str, Any]]:
    lines = (out / name / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _check(rows: list[dict[str, Any]]) -> None:
    """What is true of every update, however it was spread."""
    for row in rows:
        assert row["selected_share"] == pytest.approx(0.75, abs=0.05)
        assert row["wm_term"] >= 0  # 0: every observation token was predicted well
        assert row["grad_norm"] > 0
        # at the first optimiser step the policy is the one that sampled
        assert row["ratio_mean"] == pytest.approx(1.0, abs=0.2)
        assert row["logprob_gap"] < 0.1
        assert row["seconds_rollout"] > 0
    assert rows[0]["wm_term"] > 0
    assert any(row["policy_loss"] != 0 for row in rows), "no group's returns ever differed"


def test_a_run_goes_on_after_a_dead_engine_and_after_a_kill(out: Path) -> None:
    """GRPO, dialogues, ZeRO-2, one rank, padded, the reference offloaded."""
    settings = (
        "name=grpo",
        REFERENCE,
        "updates=4",
        "checkpoint_every=1",
        "evaluation.every=2",
        "evaluation.tasks=3",
        "model.reference_offload=true",
    )
    faults = f"{out};2:die;2:hang"
    assert "EngineDeadError" in Run(out, *settings, PAW_FAULTS=faults).finish(fails=True)
    assert [row["update"] for row in _records(out, "grpo")] == [1]
    Run(out, *settings, PAW_FAULTS=faults).kill_at(out / "fault-1")
    assert [row["update"] for row in _records(out, "grpo")] == [1, 2]
    before = _records(out, "grpo")

    _run(out, *settings, PAW_FAULTS=faults)
    rows = _records(out, "grpo")
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert rows[:2] == before
    # linear: the schedule goes on where it was
    assert [row["lr"] for row in rows] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4], rel=1e-3)
    _check(rows)
    assert all(row["failed_episodes"] == 0 for row in rows)
    validation = _records(out, "grpo", "validation")
    assert [row["update"] for row in validation] == [2, 4]
    assert {(row["n"], row["errors"]) for row in validation} == {(4, 0)}

    assert "is finished" in _run(out, *settings)
    assert _records(out, "grpo") == rows

    folder = out / "grpo"
    said(*PAW, "report", folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "World-model loss" in page
    assert "is damaged" not in page
    said(*PAW, "eval", folder, "evaluation.tasks=2", f"--out={out / 'eval'}")
    result = json.loads((out / "eval" / "result.json").read_text(encoding="utf-8"))
    assert result["n"] == 2
    assert result["errors"] == 0


def test_an_environment_that_raises_costs_its_episode_only(out: Path) -> None:
    """GiGPO, a prompt for each turn, ZeRO-3, two ranks, packed."""
    _run(
        out,
        "name=gigpo-window",
        "updates=2",
        "algorithm.name=gigpo",
        "env.mode=window",
        "openrlhf.gpus_per_node=2",
        "openrlhf.zero_stage=3",
        PACKED,
        "model.attention=sdpa",
        "optimizer.micro_batch_tokens=512",
        PAW_FAIL_EPISODE="5",
    )
    rows = _records(out, "gigpo-window")
    _check(rows)
    assert [row["failed_episodes"] for row in rows] == [1, 0]
    assert [row["transitions"] for row in rows] == [
        pytest.approx(row["steps_mean"] * episodes)
        for row, episodes in zip(rows, (7, 8), strict=True)
    ]
    [failure] = _records(out, "gigpo-window", "failures")
    assert (failure["update"], failure["during"], failure["steps"]) == (1, "training", 1)
    assert "the simulator crashed" in failure["error"]


def test_the_world_model_learns(out: Path) -> None:
    """GiGPO, dialogues, ZeRO-2, two ranks, padded."""
    _run(
        out,
        "name=gigpo",
        "updates=6",
        "algorithm.name=gigpo",
        "openrlhf.gpus_per_node=2",
        "optimizer.schedule=constant",
        "optimizer.micro_batch_tokens=512",
    )
    rows = _records(out, "gigpo")
    _check(rows)
    for name in ("wm_loss", "obs_nll"):
        first, last = (sum(row[name] for row in part) / 2 for part in (rows[:2], rows[-2:]))
        assert last < first, name


def test_packed_prompts_of_one_rank_that_holds_all_of_a_split_model(out: Path) -> None:
    """GRPO, a prompt for each turn, ZeRO-3, one rank, packed, with a reference, dynamic sampling."""
    _run(
        out,
        "name=grpo-window",
        REFERENCE,
        "updates=2",
        "env.mode=window",
        "openrlhf.zero_stage=3",
        PACKED,
        "model.attention=sdpa",
        "optimizer.micro_batch_tokens=1024",
        "optimizer.lr=1e-8",
        "algorithm.dynamic_sampling=1",
    )
    rows = _records(out, "grpo-window")
    _check(rows)
    # the policy hardly moves: packed with other rows, it agrees with its reference and with vLLM
    for row in rows:
        assert row["kl"] == pytest.approx(0, abs=1e-3)
        assert row["ratio_max"] == pytest.approx(1, abs=0.1)


def test_a_critic_learns_beside_the_policy(out: Path) -> None:
    """PPO, dialogues, ZeRO-2, one rank; it goes on after a vLLM engine has died."""
    settings = (
        "name=ppo",
        "updates=4",
        "algorithm.name=ppo",
        "algorithm.critic.lr=1e-3",
        "checkpoint_every=1",
    )
    Run(out, *settings, PAW_FAULTS=f"{out / 'ppo-faults'};2:die").finish(fails=True)
    _run(out, *settings)
    rows = _records(out, "ppo")
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert all(row["grad_norm"] > 0 and row["wm_term"] >= 0 for row in rows)
    assert all(row["ratio_mean"] == pytest.approx(1.0, abs=0.2) for row in rows)
    assert all(row["grad_norm_value"] > 0 for row in rows)
    # values start at 0, and the critic is not the one of the start after it was loaded
    assert rows[0]["value_loss"] > 0
    assert sum(row["value_loss"] for row in rows[2:]) < 2 * rows[0]["value_loss"]


def test_an_adapter_trains_and_is_sent_as_a_whole_model(out: Path) -> None:
    """GRPO, dialogues, ZeRO-2, one rank, LoRA: the sums compared are of the adapter worked in.

    Two engines with prefix caches.
    """
    _run(
        out,
        "name=lora",
        "updates=2",
        "model.lora.rank=4",
        "openrlhf.engines=2",
        "openrlhf.extra={vllm.sync_backend: gloo, vllm.enforce_eager: true}",
    )
    _check(_records(out, "lora"))
    model = out / "lora" / "checkpoints" / "model"
    assert (model / "adapter_config.json").exists()
    # a folder is opened because it is given, not because a file names it
    base = f"model.lora.base={out / 'model'}"
    said(*PAW, "eval", out / "lora", base, "evaluation.tasks=1", f"--out={out / 'eval-lora'}")


def test_a_broken_weight_update_stops_the_run(out: Path) -> None:
    broken = Run(out, "name=broken", "updates=2", PAW_BREAK_SYNC="model.embed_tokens.weight")
    printed = broken.finish(fails=True)
    assert "vLLM engine 0 does not have the trained weights" in printed
    assert not (out / "broken" / "checkpoints" / "model" / "config.json").exists()
    assert not (out / "broken" / "metrics.jsonl").exists()
