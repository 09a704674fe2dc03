"""Collect, learn, policy RL: one command, and nothing is lost when it is stopped or killed on the way."""

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
from paw_train.training import local
from paw_train.world_model_learning import predicting, stages

OWN = {
    "episodes": 4, "held_out_episodes": 2, "encoder": "words", "easy_samples": 2,
    "max_share": 0.5, "rwml.updates": 3, "rwml.transitions": 3, "rwml.group_size": 3,
    "rwml.max_tokens": 16, "rwml.lr": 1e-3, "sft.updates": 3, "sft.batch_tokens": 600,
    "sft.lr": 1e-3,
}  # fmt: skip


def overrides(out: Path, method: str) -> list[str]:
    own = [f"world_model_learning.{key}={value}" for key, value in OWN.items()]
    other = ["updates=1", "checkpoint_every=1", "evaluation.every=0", "evaluation.tasks=4"]
    return [f"out={out}", *other, f"world_model_learning.method={method}", *own]


def train(out: Path, method: str) -> Path:
    return local.train_from_recipe("smoke", overrides(out, method), quiet=True)


def record(run: Path) -> dict[str, Any]:
    """What must not hang on interruptions."""
    learned = run / "checkpoints" / "world_model" / "model" / "model.safetensors"
    latest = run / "checkpoints" / "latest" / "model" / "model.safetensors"
    curve = []
    for line in (run / "world_model.jsonl").read_text().splitlines():
        values = json.loads(line)
        curve.append({k: v for k, v in values.items() if k != "time" and "seconds" not in k})
    chosen = json.loads((run / "world_model" / "chosen.json").read_text())
    return {
        "learned": learned.read_bytes(),
        "latest": latest.read_bytes(),
        "curve": curve,
        "chosen": chosen,
        "measured": [
            json.loads((run / "world_model" / f"{when}.json").read_text())["nll_per_token"]
            for when in ("start", "learned", "trained")
        ],
        "after": json.loads((run / "eval_after.json").read_text())["successes"],
    }


@pytest.mark.parametrize("method", ["rwml", "sft"])
def test_three_stages_from_one_command(tmp_path: Path, method: str) -> None:
    run = train(tmp_path, method)
    place = run / "world_model"
    assert len(list(read_jsonl(place / "transitions.jsonl"))) == 4
    assert len(list(read_jsonl(place / "held_out.jsonl"))) == 2
    chosen = json.loads((place / "chosen.json").read_text())
    assert 0 < chosen["kept"] <= chosen["different"] <= chosen["transitions"]
    curve = [json.loads(line) for line in (run / "world_model.jsonl").read_text().splitlines()]
    assert [line["update"] for line in curve] == [1, 2, 3]
    found = record(run)
    warm = run / "checkpoints" / "warm" / "model" / "model.safetensors"
    # no prediction of this model is right, and equal rewards move a policy only once there is a KL
    assert len({warm.read_bytes(), found["learned"], found["latest"]}) == (
        3 if method == "sft" else 2
    )
    start, learned = (m["mean"] for m in found["measured"][:2])
    if method == "sft":
        assert learned < start
    assert not (run / "checkpoints" / "world_model-latest").exists()
    assert json.loads((place / "start.json").read_text())["similarity"]["mean"] is not None
    # `paw eval-wm` measures the same of the same policy and file
    trained = json.loads((place / "trained.json").read_text())
    measured = world_model_program.evaluate_from_args(
        str(run), [], str(tmp_path / "m.json"), episodes=[place / "held_out.jsonl"], encoder="words"
    )
    again = json.loads(measured.read_text())
    own = {"when", "model", "seconds"}
    assert {key: again[key] for key in trained if key not in own} == {
        key: value for key, value in trained.items() if key not in own
    }
    page = write_report(run).read_text()
    assert "World-model learning before RL" in page
    assert "World model on held-out transitions" in page
    assert train(tmp_path, method) == run  # finished: nothing is done again
    assert record(run) == found


def test_asked_to_stop_it_stops_in_the_second_stage_and_goes_on(
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
def test_killed_in_every_stage_it_computes_what_it_would_have(tmp_path: Path) -> None:
    threads = ["threads=1"]
    whole = local.train_from_recipe(
        "smoke", [*overrides(tmp_path / "whole", "rwml"), *threads], quiet=True
    )
    for moment in MOMENTS:
        killed = run_smoke([*overrides(tmp_path / "cut", "rwml"), *threads], moment)
        assert killed.code == -signal.SIGKILL, (moment, killed.output)
    last = run_smoke([*overrides(tmp_path / "cut", "rwml"), *threads])
    assert last.code == 0, last.output
    assert record(tmp_path / "cut" / "smoke") == record(whole)
    left = {p.suffix for p in (tmp_path / "cut" / "smoke").rglob("*")}
    assert not left & {".new", ".old", ".part"}


def test_runs_share_what_the_start_policy_played(tmp_path: Path) -> None:
    shared = [f"warm_starts={tmp_path / 'shared'}"]
    runs = [
        local.train_from_recipe(
            "smoke", [*overrides(tmp_path / name, name), *shared], quiet=True
        )
        for name in ("sft", "off")
    ]  # fmt: skip
    other = ["seed=1", "updates=0", "cloning.steps=2"]
    runs.append(
        local.train_from_recipe("smoke", [*overrides(tmp_path / "1", "off"), *other], quiet=True)
    )
    held_out = [(run / "world_model" / "held_out.jsonl").read_bytes() for run in runs]
    assert len({*held_out}) == 1, "whatever the seed and the method"
    kept = read_run(runs[1], "off", 0).after
    measured = json.loads((runs[1] / "world_model" / "trained.json").read_text())
    assert kept["common_nll"] == pytest.approx(measured["nll_per_token"]["mean"], rel=1e-4)
    assert kept["common_auroc"] == pytest.approx(measured["refusal_auroc"], rel=1e-4)
    assert "similarity" not in measured, "nothing was learned in a space of vectors"
    assert not (runs[1] / "world_model" / "learned.json").exists()
    assert (runs[1] / "world_model" / "trained.json").exists()
    # the start of policy RL differs, and so its evaluation is not shared
    folders = sorted((tmp_path / "shared").glob("*-evaluation"))
    assert len(folders) == 2
    assert len(list((tmp_path / "shared").glob("*-transitions"))) == 1


def test_nothing_left_to_learn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # every cosine of word counts is 0 or more: within that distance but for blank predictions
    easy = ["world_model_learning.rwml.threshold=1.99"]
    monkeypatch.setattr(predicting, "_KEPT_EASY", 0.0)
    monkeypatch.setattr(stages, "solved_shares", lambda guesses, *_: np.ones(len(guesses)))
    with pytest.raises(ValueError, match="Lower the threshold"):
        local.train_from_recipe("smoke", [*overrides(tmp_path, "rwml"), *easy], quiet=True)
