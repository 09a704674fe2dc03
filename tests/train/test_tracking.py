"""Experiment tracking: every update once, whatever stops the run; artifacts; packages that are missing."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra `train`")

from paw_gym.internals.files import append_jsonl, truncate_jsonl
from paw_train.cli.program import app
from paw_train.reporting.tracking import STATE, TRACKERS, TrackedRun, Tracking
from paw_train.training.local import train_from_recipe
from paw_train.training.openrlhf.run_records import RunRecords, cluster_tracking


class Memory:
    """A tracker that keeps what it is given; ``sessions`` are the runs that were opened."""

    package: ClassVar[str] = "json"
    extra: ClassVar[str] = "none"
    sessions: ClassVar[list[Memory]] = []
    stop_after: ClassVar[int | None] = None

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.id = run, run.id or f"id-{len(self.sessions)}"
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []
        self.summaries: dict[str, float] = {}
        self.files: list[str] = []
        self.finished: bool | None = None
        self.sessions.append(self)

    def log(self, update: int, values: Mapping[str, float]) -> None:
        self.steps.append(update)
        self.values.append(dict(values))
        if update == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    def summary(self, update: int, values: Mapping[str, float]) -> None:
        self.summaries.update(values)

    def file(self, path: Path) -> None:
        assert path.is_file()
        self.files.append(path.name)

    def close(self, finished: bool) -> None:
        self.finished = finished


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Memory]]:
    monkeypatch.setattr(Memory, "sessions", [])
    monkeypatch.setattr(Memory, "stop_after", None)
    monkeypatch.setitem(TRACKERS._loaded, "memory", Memory)
    yield Memory


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


def test_every_update_comes_once(tmp_path: Path, memory: type[Memory]) -> None:
    with tracking(tmp_path, "memory") as first:
        first.follow()
        assert not memory.sessions, "nothing to hand over yet, so nothing is opened"
        measured(tmp_path, 1)
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
    one, two = memory.sessions
    assert (one.steps, two.steps) == ([1, 2, 3], [4])
    assert two.id == one.id == two.run.id and one.run.id is None
    assert (one.finished, two.finished) == (False, True)
    assert one.values[0] == {"success_rate": 0.1, "odd": 1.0}
    assert one.values[1] == {"success_rate": 0.2}
    assert two.summaries["eval_after/success_rate"] == 0.5
    assert two.summaries["eval_before/ci95_low"] == pytest.approx(0.15)
    expected = {
        "config.json",
        "metrics.jsonl",
        "eval_before.json",
        "eval_after.json",
        "report.html",
    }
    assert set(two.files) == expected and one.files == []


def test_a_tracker_that_joins_later_gets_everything(tmp_path: Path, memory: type[Memory]) -> None:
    measured(tmp_path, 1, 2)
    with tracking(tmp_path) as untracked:
        untracked.follow()
    assert not (tmp_path / STATE).exists()
    with tracking(tmp_path, "memory") as joined:
        joined.follow()
    assert memory.sessions[0].steps == [1, 2]


SMALL = [
    *["updates=3", "checkpoint_every=1", "threads=1", "cloning.episodes=0", "tracking=[memory]"],
    *["evaluation.tasks=2", "evaluation.every=0", "rollout.groups=2", "rollout.group_size=2"],
    *["rollout.max_response_tokens=8", "env.kwargs.max_steps=4", "env.train_kwargs.max_steps=3"],
    *["env.kwargs.num_tasks=12", "model.scratch.hidden=32", "model.scratch.layers=1"],
    *["model.scratch.heads=2", "model.scratch.intermediate=32"],
]


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_in_the_same_tracked_run(
    tmp_path: Path, memory: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "stop_after", 2)
    for _ in range(2):
        folder = train_from_recipe("smoke", [*SMALL, f"out={tmp_path}"], quiet=True)
    one, two = memory.sessions
    assert (one.steps, two.steps) == ([1, 2], [3])
    assert (one.id, one.finished, two.finished) == (two.id, False, True)
    assert one.run.settings["tracking"] == ["memory"] and one.run.name == folder.name
    assert "report.html" in two.files and "eval_after/success_rate" in two.summaries
    assert not (folder / "tensorboard").exists()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [v["reward_mean"] for v in one.values + two.values] == [r["reward_mean"] for r in rows]


def test_the_cluster_engine_hands_over_as_well(tmp_path: Path, memory: type[Memory]) -> None:
    from paw_train.settings import load_settings

    settings = load_settings(
        "smoke", [f"out={tmp_path}", "tracking=[tensorboard,memory]", "name=c"]
    )
    (tmp_path / "c").mkdir()
    with cluster_tracking(settings) as followed:
        records = RunRecords(tmp_path / "c", followed)
        records.update(1, {"loss": 0.5})
        records.update(2, {"loss": 0.25})
    assert memory.sessions[0].steps == [1, 2]
    assert memory.sessions[0].values[1]["loss"] == 0.25
    assert not (tmp_path / "c" / "tensorboard").exists(), "OpenRLHF writes that one itself"


# --- the trackers themselves ----------------------------------------------------------------------


def two_sessions(folder: Path, name: str, wait: float = 0.0) -> dict[str, Any]:
    """A run that is stopped and continued; returns what the tracker is remembered by."""
    folder.mkdir()
    measured(folder, 1, 2)
    with tracking(folder, name) as first:
        first.follow()
    time.sleep(wait)
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

    folder = tmp_path / "run"
    two_sessions(folder, "tensorboard", wait=1.0)  # files are ordered by their second
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
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
    for key, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "run"
    state = two_sessions(folder, "wandb", wait=1.0)  # folders, too
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


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[wandb]", "tracking=wandb needs the package 'wandb'"),
        ("[tensorboard,wandb]", 'pip install ".[wandb]"'),
        ("[tensorbord]", "There is no tracker 'tensorbord'. Did you mean 'tensorboard'"),
        ("[tensorboard,tensorboard]", "tracking: 'tensorboard' is named twice"),
        ("wandb", "tracking: expected list"),
    ],
)
def test_what_cannot_be_tracked_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    out = tmp_path / "runs"
    done = CliRunner().invoke(app, ["train", "smoke", f"tracking={names}", f"out={out}"])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split()) and done.stderr.count("\n") == 1
    assert not out.exists()
