"""Experiment tracking: every update once, whatever stops the run; artifacts; what is missing."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra `train`")

from paw_gym.internals.files import append_jsonl, truncate_jsonl
from paw_train.cli.program import app
from paw_train.reporting.tracking import STATE, TRACKERS, TrackedRun, Tracking
from paw_train.settings import load_settings
from paw_train.training import local
from paw_train.training.openrlhf.run_records import RunRecords, cluster_tracking


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tracker whose runs, in ``opened``, remember what they are given."""

    def start(run: TrackedRun) -> Any:
        found = MagicMock(run=run, id=run.id or f"id-{len(start.opened)}")
        start.opened.append(found)
        return found

    start.package, start.extra, start.opened = "json", "none", []
    monkeypatch.setitem(TRACKERS._loaded, "memory", start)
    return start


def logged(opened: Any) -> list[tuple[int, dict[str, float]]]:
    """The updates and values of a run, as they came."""
    return [call.args for call in opened.log.call_args_list]


def files(opened: Any) -> list[str]:
    return [call.args[0].name for call in opened.file.call_args_list]


def tracking(folder: Path, *names: str) -> Tracking:
    return Tracking(folder, "my run", names, {"seed": 1, "env": {"id": "x"}})


def measured(folder: Path, *updates: int) -> None:
    for update in updates:
        row = {"update": update, "success_rate": update / 10, "note": "text", "time": 1.0}
        append_jsonl(folder / "metrics.jsonl", {**row, "odd": float("nan") if update == 2 else 1})


def results(folder: Path) -> None:
    for when, rate in (("before", 0.25), ("after", 0.5)):
        result = {"success_rate": rate, "ci95": [rate - 0.1, rate + 0.1]}
        (folder / f"eval_{when}.json").write_text(json.dumps(result))
    (folder / "report.html").write_text("<p>report</p>")
    (folder / "config.json").write_text("{}")


def test_every_update_comes_once(tmp_path: Path, memory: Any) -> None:
    with tracking(tmp_path, "memory") as first:
        first.follow()
        assert not memory.opened, "nothing to hand over yet, so nothing is opened"
    measured(tmp_path, 1)
    with tracking(tmp_path) as untracked:
        untracked.follow()
    assert not (tmp_path / STATE).exists()
    with tracking(tmp_path, "memory") as first:
        first.follow()
        measured(tmp_path, 2, 3)
        first.follow()
    # killed: the run goes on from the checkpoint after update 2, and computes update 3 again
    truncate_jsonl(tmp_path / "metrics.jsonl", "update", 3)
    with tracking(tmp_path, "memory") as again:
        measured(tmp_path, 3, 4)
        again.follow()
        results(tmp_path)
        again.finish()
    one, two = memory.opened
    first_two = [(1, {"success_rate": 0.1, "odd": 1.0}), (2, {"success_rate": 0.2})]
    assert logged(one)[:2] == first_two
    assert [update for update, _ in logged(one) + logged(two)] == [1, 2, 3, 4]
    assert two.id == one.id == two.run.id and one.run.id is None
    one.close.assert_called_once_with()
    two.close.assert_called_once_with()
    found = two.summary.call_args.args[1]
    assert found["eval_after/success_rate"] == 0.5
    assert found["eval_before/ci95_low"] == pytest.approx(0.15)
    evaluations = {"eval_before.json", "eval_after.json"}
    assert set(files(two)) == {*evaluations, "config.json", "metrics.jsonl", "report.html"}
    assert not files(one)


def test_a_tracking_that_is_entered_again_opens_its_trackers_again(
    tmp_path: Path, memory: Any
) -> None:
    again = tracking(tmp_path, "memory")
    for update in (1, 2):
        measured(tmp_path, update)
        with again:
            again.follow()
    assert [[update for update, _ in logged(opened)] for opened in memory.opened] == [[1], [2]]


SMALL = ["updates=3", "checkpoint_every=1", "threads=1", "cloning.episodes=0", "tracking=[memory]"]
SMALL += ["evaluation.tasks=2", "evaluation.every=0", "rollout.groups=2"]


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_the_same_tracked_run(
    tmp_path: Path, memory: Any, monkeypatch: Any, capfd: Any
) -> None:
    def asking(path: Path, line: dict[str, Any]) -> None:
        append_jsonl(path, line)
        if path.name == "metrics.jsonl" and line["update"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(local, "append_jsonl", asking)
    folder = local.train_from_recipe("smoke", [*SMALL, f"out={tmp_path}"])
    assert "goes on from here" in " ".join(capfd.readouterr().out.split())
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "checkpoints" / "latest" / "state.pt").exists()
    local.train_from_recipe("smoke", [*SMALL, f"out={tmp_path}"], quiet=True)
    one, two = memory.opened
    assert one.id == two.id
    one.close.assert_called_once_with()
    two.close.assert_called_once_with()
    assert one.run.settings["tracking"] == ["memory"] and one.run.name == folder.name
    assert "report.html" in files(two)
    assert "eval_after/success_rate" in two.summary.call_args.args[1]
    assert not (folder / "tensorboard").exists()
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    came = [(update, values["reward_mean"]) for update, values in logged(one) + logged(two)]
    assert came == [(row["update"], row["reward_mean"]) for row in rows]
    assert len(logged(two)) == 1


def test_the_cluster_engine_hands_over_as_well(tmp_path: Path, memory: Any) -> None:
    names = "tracking=[tensorboard,memory]"
    settings = load_settings("smoke", [f"out={tmp_path}", names, "name=c"])
    (tmp_path / "c").mkdir()
    with cluster_tracking(settings) as followed:
        records = RunRecords(tmp_path / "c", followed)
        records.update(1, {"loss": 0.5})
        records.update(2, {"loss": 0.25})
    (session,) = memory.opened
    assert [(u, values["loss"]) for u, values in logged(session)] == [(1, 0.5), (2, 0.25)]
    assert not (tmp_path / "c" / "tensorboard").exists(), "OpenRLHF writes that one itself"


def two_sessions(folder: Path, name: str) -> dict[str, Any]:
    """A run that is stopped and continued; returns what the tracker is remembered by."""
    folder.mkdir()
    measured(folder, 1, 2)
    with tracking(folder, name) as first:
        first.follow()
    time.sleep(1.0)  # files and folders are ordered by their second
    measured(folder, 3)
    results(folder)
    with tracking(folder, name) as again:
        again.finish()
    state: dict[str, Any] = json.loads((folder / STATE).read_text())[name]
    assert state["last"] == 3
    return state


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `train`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_sessions(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    scalars = [(e.step, round(e.value, 3)) for e in events.Scalars("success_rate")]
    assert scalars == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [e.value for e in events.Scalars("eval_after/success_rate")] == [0.5]
    assert "report.html/text_summary" in events.Tags()["tensors"]


def wandb_records(data: bytes) -> list[bytes]:
    """The records of an offline file: LevelDB's log format, behind a header of 7 bytes."""
    found, parts, place, block, header = [], b"", 7, 32768, 7
    while place + header <= len(data):
        if block - place % block < header:
            place += block - place % block
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + header : place + header + size]
        place += header + size
        if kind in (1, 4):  # whole, or the last part
            found.append(parts)
            parts = b""
    return found


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb`")
    places = {"CACHE_DIR": str(tmp_path / "cache"), "DATA_DIR": str(tmp_path / "data")}
    for key, value in {"MODE": "offline", "SILENT": "true", **places}.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    folder = tmp_path / "run"
    state = two_sessions(folder, "wandb")
    logs = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(logs) == 2 and all(state["id"] in log.name for log in logs)
    from wandb.proto.wandb_internal_pb2 import Record

    steps, artifacts = [], []
    for log in logs:
        for data in wandb_records(log.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
            artifacts.append(str(record))
    assert steps == [1, 2, 3]
    assert any("report.html" in text for text in artifacts)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[wandb]", "tracking=wandb needs the package 'wandb'"),
        ("[tensorboard,wandb]", 'pip install ".[wandb]"'),
        ("[tensorbord]", "There is no tracker 'tensorbord'. Did you mean 'tensorboard'"),
        ("[tensorboard,tensorboard]", "tracking: 'tensorboard' is named twice"),
    ],
)
def test_what_cannot_be_tracked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = CliRunner().invoke(app, ["train", "smoke", f"tracking={names}", f"out={tmp_path / 'x'}"])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split()) and done.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()
