"""What a cluster run leaves and what it drops when it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trajectories import made_up

from paw_train.reporting.run.data import load_run
from paw_train.rollouts.rollout import Trajectory
from paw_train.training.openrlhf.run_records import RunRecords


def _rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _episodes() -> list[Trajectory]:
    made = made_up(False, [(task, 1, 0.0) for task in range(4)])
    for number, trajectory in enumerate(made):
        info = {"success": number == 0, "score": 0.5 + (number == 0) / 2}
        trajectory.episode.transitions[0].info.update(info)
    made[3].episode.transitions.clear()
    made[3].episode.error = "Traceback: x"
    return made


def test_a_failed_episode_is_kept_with_its_traceback_and_is_no_success(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    assert len(records.failures(2, "training", _episodes())) == 1
    [failure] = _rows(tmp_path, "failures")
    assert (failure["update"], failure["task_id"]) == (2, "task3")
    assert failure["error"] == "Traceback: x"
    records.validation(3, _episodes())
    [row] = _rows(tmp_path, "validation")
    assert (row["success_rate"], row["score"], row["n"], row["errors"]) == (0.25, 0.5, 4, 1)
    assert row["ci95"][0] < 0.25 < row["ci95"][1]


def test_a_run_that_goes_on_drops_what_it_computes_again(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    for update in (1, 2, 3):
        records.update(update, {"success_rate": 0.5, "generated_samples": ["text"]})
        records.failures(update, "training", _episodes())
        records.validation(update, _episodes())
    records.resume(2)
    records.update(3, {"success_rate": 1.0})
    rows = _rows(tmp_path, "metrics")
    assert [r["update"] for r in rows] == [1, 2, 3]
    assert "generated_samples" not in rows[0]
    assert [r["update"] for r in _rows(tmp_path, "failures")] == [1, 2]
    assert [r["update"] for r in _rows(tmp_path, "validation")] == [1, 2]
    assert [r["success_rate"] for r in load_run(tmp_path).metrics] == [0.5, 0.5, 1.0]
