"""A run goes on with other rates and with more updates; what is lost in between is said.

Stopped runs: test_tracking.py; kills: test_kill.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from files import measured

from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.settings import MAY_CHANGE, Settings, load_settings
from paw_train.settings.base import flatten
from paw_train.training.local import claim_folder, local_settings, train_from_recipe

SHORT = ["threads=1", "checkpoint_every=1", "evaluation.every=0", "evaluation.tasks=2"]
SHORT += ["tracking=[]", "optimizer.schedule=constant", "record.every=0"]


def _short(out: Path, *settings: str, quiet: bool = True) -> Path:
    return train_from_recipe("smoke", [f"out={out}", *SHORT, *settings], quiet=quiet)


def _events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").open()]


def test_a_finished_run_goes_on_when_updates_grow(tmp_path: Path) -> None:
    whole = _short(tmp_path / "whole", "updates=3")
    run = _short(tmp_path / "grown", "updates=1")
    first = (run / "eval_after.json").read_bytes()
    _short(tmp_path / "grown", "updates=1")
    assert not (run / "events.jsonl").exists()
    _short(tmp_path / "grown", "updates=3")
    assert measured(run) == measured(whole)
    weights = "checkpoints/latest/model/model.safetensors"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()
    assert (run / "eval_after.json").read_bytes() != first
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        ours, theirs = (r / "checkpoints" / "latest" / "model" / file for r in (run, whole))
        assert ours.read_bytes() == theirs.read_bytes(), file
    assert _events(run)[0]["changed"] == {"updates": [1, 3]}
    with pytest.raises(ValueError, match="updates, which was 3 and may only grow"):
        _short(tmp_path / "grown", "updates=2")
    with pytest.raises(ValueError, match=r"is finished, and optimizer\.lr was"):
        _short(tmp_path / "grown", "updates=3", "optimizer.lr=0.5")


def test_what_a_kill_left_beside_the_end_of_a_stage_is_removed(tmp_path: Path) -> None:
    learning = ["updates=0", "world_model_learning.method=sft", "world_model_learning.episodes=2"]
    learning.append("world_model_learning.sft.updates=1")
    run = _short(tmp_path, *learning)
    (run / "eval_after.json").unlink()
    for stage in ("warm", "world_model"):  # killed after the stage was saved
        shutil.copytree(run / "checkpoints" / stage, run / "checkpoints" / f"{stage}-latest")
    _short(tmp_path, *learning)
    assert not list((run / "checkpoints").glob("*-latest"))


def test_a_run_records_its_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr("paw_train.settings.run.CPU_LIMIT", limit)
    free = os.sched_getaffinity(0)
    for text, cores in (
        ("max 100000", len(free)),
        ("40000 100000", 1),
        ("9900000 100000", len(free)),
    ):
        limit.write_text(text)
        assert load_settings("smoke", ["threads=null"]).cpu_threads == cores
    try:
        for cores in (free, {min(free)}):  # as taskset sets them
            os.sched_setaffinity(0, cores)
            settings = local_settings(load_settings("smoke", ["threads=null"]), str)
            assert settings.threads == len(cores)
    finally:
        os.sched_setaffinity(0, free)


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_leave_their_core_to_other_programs(
    given: dict[str, str], spins: str | None
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in names} | given
    code = (
        "import atexit, os, sys\n"
        "from paw_train.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT')))\n"
        "main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(spins), done.stderr


def test_only_listed_settings_may_change(tmp_path: Path) -> None:
    settings = Settings()
    names = [f"{name}." for name, _ in flatten(settings.to_dict())]
    assert "seed." in names and "seed" not in MAY_CHANGE
    assert all(any(n.startswith(f"{name}.") for n in names) for name in MAY_CHANGE)
    claim_folder(tmp_path / "x", settings)
    rates = settings.optimizer.replace(lr=0.5)
    claim_folder(tmp_path / "x", settings.replace(optimizer=rates))
    (event,) = _events(tmp_path / "x")
    assert event["changed"] == {"optimizer.lr": [settings.optimizer.lr, 0.5]}
    assert json.loads((tmp_path / "x" / "config.json").read_text())["optimizer"]["lr"] == 0.5
    with pytest.raises(ValueError, match=r"first difference: optimizer\.weight_decay\)"):
        claim_folder(tmp_path / "x", settings.replace(optimizer=rates.replace(weight_decay=0.5)))
    slower = settings.replace(optimizer=rates, cloning=settings.cloning.replace(lr=1e-9))
    latest = tmp_path / "x" / "checkpoints" / "warm-latest"
    latest.mkdir(parents=True)
    claim_folder(tmp_path / "x", slower)
    assert not latest.exists(), "a warm start of two rates is nobody's"
    (tmp_path / "x" / "checkpoints" / "warm").mkdir()
    (tmp_path / "x" / "checkpoints" / "warm" / "state.pt").touch()
    with pytest.raises(ValueError, match=r"cloning\.lr, which may change until checkpoints/warm"):
        claim_folder(tmp_path / "x", slower.replace(cloning=settings.cloning))


def test_a_warm_start_that_diverges_is_saved_nowhere(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    where = [f"warm_starts={shared}", "updates=0", "evaluation.tasks=0", "cloning.steps=8"]
    with pytest.raises(TrainingDivergedError, match=r"cloning\.lr"):
        _short(tmp_path, *where, "cloning.lr=1e30")
    assert not shared.exists() and not list((tmp_path / "smoke").rglob("state.pt"))
    run = _short(tmp_path, *where, "cloning.lr=1e-3")
    assert (run / "checkpoints" / "warm" / "state.pt").exists()
    assert len(list(shared.rglob("state.pt"))) == 1


def test_what_was_lost_from_a_run_is_said(tmp_path: Path, capfd: Any) -> None:
    run = _short(tmp_path, "updates=2")
    (run / "eval_after.json").unlink()
    log = run / "metrics.jsonl"
    first, second = log.read_text().splitlines()
    log.write_text(first[:50] + "\n" + second + "\n")
    _short(tmp_path, "updates=2", quiet=False)
    assert "metrics.jsonl: line 1 was cut short" in " ".join(capfd.readouterr().out.split())
    assert [e["lines"] for e in _events(run)] == [[1]]
    assert log.read_text() == second + "\n"
    (run / "eval_after.json").unlink()
    log.write_text(first + "\n" + second + "\n")
    shutil.rmtree(run / "checkpoints" / "latest")
    with pytest.raises(ValueError, match=r"has 2 updates, but the checkpoint .*latest is missing"):
        _short(tmp_path, "updates=2")
    assert len(log.read_text().splitlines()) == 2
    _short(tmp_path, "updates=2", "checkpoint_every=9", quiet=False)
    assert "No checkpoint yet: 2 updates are computed again" in capfd.readouterr().out
    assert [json.loads(line)["update"] for line in log.open()] == [1, 2]
