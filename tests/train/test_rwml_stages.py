"""Collect, learn, policy RL: one command, and nothing is lost when it is stopped or killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import run_smoke

from paw_gym.transition import read_jsonl
from paw_train.evaluation import world_model_program
from paw_train.evaluation.terminal import Display
from paw_train.reporting.compare.results import read_run
from paw_train.reporting.run.page import write_report
from paw_train.settings import load_settings
from paw_train.settings.run import shared_transitions
from paw_train.training import local
from paw_train.world_model_learning import predicting, stages

OWN = {
    "episodes": 4, "held_out_episodes": 2, "encoder": "words", "easy_samples": 2,
    "max_share": 0.5, "rwml.updates": 3, "rwml.transitions": 3, "rwml.group_size": 3,
    "rwml.max_tokens": 16, "rwml.lr": 1e-3, "sft.updates": 3, "sft.batch_tokens": 600,
    "sft.lr": 1e-3,
}  # fmt: skip


def overrides(out: Path, method: str, *more: str) -> list[str]:
    own = [f"world_model_learning.{key}={value}" for key, value in OWN.items()]
    other = ["updates=1", "checkpoint_every=1", "evaluation.every=0", "evaluation.tasks=4"]
    return [f"out={out}", *other, f"world_model_learning.method={method}", *own, *more]


def train(out: Path, method: str, *more: str) -> Path:
    return local.train_from_recipe("smoke", overrides(out, method, *more), quiet=True)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def record(run: Path) -> dict[str, Any]:
    """What must not hang on interruptions."""
    weights = "model/model.safetensors"
    lines = map(json.loads, (run / "world_model.jsonl").read_text().splitlines())
    return {
        "learned": (run / "checkpoints" / "world_model" / weights).read_bytes(),
        "latest": (run / "checkpoints" / "latest" / weights).read_bytes(),
        "curve": [
            {k: v for k, v in line.items() if k != "time" and "seconds" not in k} for line in lines
        ],
        "chosen": read(run / "world_model" / "chosen.json"),
        "measured": [
            read(run / "world_model" / f"{when}.json")["nll_per_token"]
            for when in ("start", "learned", "trained")
        ],
        "after": read(run / "eval_after.json")["successes"],
    }


@pytest.mark.parametrize("method", ["rwml", "sft"])
def test_three_stages_from_one_command(tmp_path: Path, method: str) -> None:
    run = train(tmp_path, method)
    place = run / "world_model"
    assert len(list(read_jsonl(place / "transitions.jsonl"))) == 4
    assert len(list(read_jsonl(place / "held_out.jsonl"))) == 2
    found = record(run)
    chosen = found["chosen"]
    assert 0 < chosen["kept"] <= chosen["different"] <= chosen["transitions"]
    assert [line["update"] for line in found["curve"]] == [1, 2, 3]
    warm = run / "checkpoints" / "warm" / "model" / "model.safetensors"
    # no prediction is right, and equal rewards move a policy only once there is a KL
    assert len({warm.read_bytes(), found["learned"], found["latest"]}) == (
        3 if method == "sft" else 2
    )
    start, learned = (m["mean"] for m in found["measured"][:2])
    if method == "sft":
        assert learned < start
    assert not (run / "checkpoints" / "world_model-latest").exists()
    assert read(place / "start.json")["similarity"]["mean"] is not None
    # `paw eval-wm` measures the same of the same policy and file
    trained = read(place / "trained.json")
    measured = world_model_program.evaluate_from_args(
        str(run), [], str(tmp_path / "m.json"), episodes=[place / "held_out.jsonl"], encoder="words"
    )
    own = {"when", "model", "seconds"}
    shared = {key: value for key, value in trained.items() if key not in own}
    assert read(measured).items() >= shared.items()
    page = write_report(run).read_text()
    assert "World-model learning before RL" in page
    assert "World model on held-out transitions" in page
    assert train(tmp_path, method) == run  # finished: nothing is done again
    assert record(run) == found


def test_asked_to_stop_it_stops_in_the_second_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = record(train(tmp_path / "whole", "sft"))
    real = stages.append_jsonl

    def asking(path: Path, line: dict[str, Any]) -> None:
        real(path, line)
        if path.name == stages.METRICS_FILE:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(stages, "append_jsonl", asking)
    for done in (1, 2, 3):
        run = train(tmp_path / "cut", "sft")
        assert len((run / "world_model.jsonl").read_text().splitlines()) == done
        assert not (run / "metrics.jsonl").exists()
    monkeypatch.undo()
    with (run / "world_model.jsonl").open("a") as log:
        log.write('{"upda')  # a kill cuts a line short
    said: list[str] = []
    monkeypatch.setattr(Display, "say", lambda self, text: said.append(text))
    assert record(train(tmp_path / "cut", "sft")) == whole
    assert any("world_model.jsonl: line 4 was cut short" in text for text in said)


MOMENTS = (
    ("paw_train.world_model_learning.stages:rollout", 0),  # between held-out and training episodes
    ("paw_train.world_model_learning.stages:append_jsonl", 1),  # after an update, before its record
    ("os:replace", 3),  # in the renames of what comes then
    ("paw_train.training.local:append_jsonl", 0),  # in policy RL
)


@pytest.mark.slow
def test_killed_in_every_stage_it_goes_on(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", "rwml", "threads=1")
    command = overrides(tmp_path / "cut", "rwml", "threads=1")
    for moment in MOMENTS:
        killed = run_smoke(command, moment)
        assert killed.code == -signal.SIGKILL, (moment, killed.output)
    last = run_smoke(command)
    assert last.code == 0, last.output
    assert record(tmp_path / "cut" / "smoke") == record(whole)
    left = {p.suffix for p in (tmp_path / "cut" / "smoke").rglob("*")}
    assert not left & {".new", ".old", ".part"}


def test_runs_share_what_the_start_policy_played(tmp_path: Path) -> None:
    shared = f"warm_starts={tmp_path / 'shared'}"
    runs = [train(tmp_path / name, name, shared) for name in ("sft", "off")]
    runs.append(train(tmp_path / "1", "off", "seed=1", "updates=0", "cloning.steps=2"))
    held_out = [(run / "world_model" / "held_out.jsonl").read_bytes() for run in runs]
    assert len({*held_out}) == 1, "whatever the seed and the method"
    kept = read_run(runs[1], "off", 0).after
    measured = read(runs[1] / "world_model" / "trained.json")
    assert kept["common_nll"] == pytest.approx(measured["nll_per_token"]["mean"], rel=1e-4)
    assert kept["common_auroc"] == pytest.approx(measured["refusal_auroc"], rel=1e-4)
    assert "similarity" not in measured, "nothing was learned in a space of vectors"
    assert not (runs[1] / "world_model" / "learned.json").exists()
    assert (runs[1] / "world_model" / "trained.json").exists()
    # the start of policy RL differs, and so its evaluation is not shared
    folders = sorted((tmp_path / "shared").glob("*-evaluation"))
    assert len(folders) == 2
    assert len(list((tmp_path / "shared").glob("*-transitions"))) == 1


def test_a_shared_measurement_names_the_run_that_takes_it(tmp_path: Path) -> None:
    more = overrides(tmp_path, "off", f"warm_starts={tmp_path / 'shared'}", "name=second")
    settings = load_settings("smoke", more)
    shared, place = shared_transitions(settings), tmp_path / "second" / "world_model"
    assert shared is not None
    for folder in (shared, place):
        folder.mkdir(parents=True)
    (place / "held_out.jsonl").touch()
    (shared / "start.json").write_text('{"model": "first", "transitions": 3}')
    policy: Any = None  # measures nothing
    stages.WorldModelStages(settings, place.parent, policy, Display(True), bool, bool).measure(
        "start"
    )
    assert read(place / "start.json") == {"model": "second", "transitions": 3}


def test_nothing_left_to_learn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # every cosine of word counts is 0 or more: within that distance but for blank predictions
    easy = "world_model_learning.rwml.threshold=1.99"
    monkeypatch.setattr(predicting, "_KEPT_EASY", 0.0)
    monkeypatch.setattr(stages, "solved_shares", lambda guesses, *_: np.ones(len(guesses)))
    with pytest.raises(ValueError, match="Lower the threshold"):
        train(tmp_path, "rwml", easy)
