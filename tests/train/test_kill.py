"""Killed in a rollout, an update, the writing of a checkpoint, a run loses nothing."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from files import measured
from forked import HELD, Ended, Forked, KillAt, run_smoke

MOMENTS = {
    "paw_gym.pool:EnvPool:step": 60,  # a rollout, a demonstration, an evaluation
    "torch.optim:AdamW:step": 8,  # cloning, an update
    "torch:save": 3,  # a checkpoint's state
    "os:replace": 10,  # the renames that put a checkpoint, or a record, in its place
    "os:fsync": 12,
    "shutil:rmtree": 6,
    "paw_train.training.local:append_jsonl": 3,  # between an update and its record
}
"""where a run is killed, and the most calls it may make before"""


WORLDS = (
    'env=[{"id":"paw_gym/ToyText-v0","template":"compact","kwargs":{"max_steps":6,"num_tasks":20}},'
    '{"id":"paw_gym/Sokoban-v0","template":"compact","mode":"conversation","weight":2,'
    '"kwargs":{"size":5,"boxes":1,"max_steps":4,"num_tasks":20}}] rollout.groups=3'
)
MIXED = "paw_train.training.environments"


def _run(out: Path, settings: str, kill_at: KillAt | None = None) -> Ended:
    often = ["checkpoint_every=1", "cloning.checkpoint_every=2", "evaluation.every=3"]
    return run_smoke([f"out={out}", *often, *settings.split()], kill_at)


def _record(out: Path) -> tuple[bytes, list[dict[str, object]], object]:
    run = out / "smoke"
    weights = (run / "checkpoints" / "latest" / "model" / "model.safetensors").read_bytes()
    result = json.loads((run / "eval_after.json").read_text())
    return weights, measured(run), result["successes"]


def _ten() -> list[KillAt]:
    """All of these moments, some of them twice, each at a random call."""
    rng = random.Random(5)
    targets = [*MOMENTS, *rng.choices(list(MOMENTS), k=10 - len(MOMENTS))]
    rng.shuffle(targets)
    return [(target, rng.randrange(MOMENTS[target])) for target in targets]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "moments", "recorded"),
    [
        ("updates=8", _ten(), None),
        # while the groups of the second update are divided, and while the third is recorded
        (f"updates=3 {WORLDS}",
         [(f"{MIXED}:divided", 1), (f"{MIXED}:TrainingEnvironments:metrics", 1)], 2),
    ],
)  # fmt: skip
def test_kills_lose_nothing(
    tmp_path: Path, settings: str, moments: list[KillAt], recorded: int | None
) -> None:
    whole = _run(tmp_path / "whole", settings)
    assert whole.code == 0, whole.output
    cut = tmp_path / "cut" / "smoke"
    for moment in moments:
        killed = _run(tmp_path / "cut", settings, moment)
        assert killed.code == -signal.SIGKILL, (moment, killed.output)
    assert not (cut / "eval_after.json").exists()
    if recorded is not None:
        assert len((cut / "metrics.jsonl").read_text().splitlines()) == recorded
    last = _run(tmp_path / "cut", settings)
    assert last.code == 0, last.output
    assert _record(tmp_path / "cut") == _record(tmp_path / "whole")
    assert not {p.suffix for p in cut.rglob("*")} & {".new", ".old", ".part"}


@pytest.mark.slow
def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    from paw_train.training.local import train_from_recipe

    settings = [f"out={tmp_path}", "updates=1", "evaluation.every=0", "threads=1"]
    log = tmp_path / "smoke" / "metrics.jsonl"
    first = Forked(HELD, tmp_path / "go", *settings)
    try:
        while "recorded" not in first.said():
            assert first.process.is_alive(), first.wait().output
            time.sleep(0.05)
        before = log.read_bytes()
        for fresh in (False, True):
            with pytest.raises(ValueError, match=r"Another process is working in .*smoke\."):
                train_from_recipe("smoke", settings, fresh=fresh, quiet=True)
        assert log.read_bytes() == before
    finally:
        first.process.kill()
        first.wait()
    train_from_recipe("smoke", settings, quiet=True)
    assert len(log.read_text().splitlines()) == 1
