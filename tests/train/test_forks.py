"""Processes that share a model's work compute what one computes, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import exact_policy, word_policy
from trajectories import made_up

from paw_gym.internals.locks import is_held
from paw_gym.pool import EnvPool
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.forks import processes_for, side_by_side
from paw_train.rollouts.rollout import rollout
from paw_train.rollouts.rows import with_placebo
from paw_train.settings import (
    AlgorithmSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RolloutSettings,
)
from paw_train.settings.world_model import WorldModelSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks share work on Linux only")


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three processes, however little there is to do."""
    monkeypatch.setattr("paw_train.algorithms.update._FEWEST_SHARED", 1)
    monkeypatch.setattr("paw_train.rollouts.rollout._FEWEST_SHARED", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def _counted(monkeypatch: pytest.MonkeyPatch, where: str) -> list[int]:
    """The numbers of processes that shared something there."""
    counts: list[int] = []

    def counting(works: Any) -> Any:
        counts.append(len(works))
        return side_by_side(works)

    monkeypatch.setattr(where, counting)
    return counts


def _learned(threads: int, wm: WorldModelSettings, more: dict[str, Any]) -> tuple[Any, Any]:
    """Weights after two updates of two mini-batches, and the metrics."""
    torch.set_num_threads(threads)
    objective = ObjectiveSettings(kl_coef=0.01, entropy_coef=0.02, log_observations=True)
    optimizer = OptimizerSettings(lr=1e-2, minibatches=2, warmup_updates=0, **more)
    updater = Updater(exact_policy(), exact_policy(1), optimizer, objective, wm, 1.0, 4)
    metrics = {}
    for update in range(2):
        pool = collect(made_up(not wm.placebo))
        rows = prepare(pool, AlgorithmSettings(), objective, wm, 10.0).rows
        rows = with_placebo(rows, 0) if wm.placebo else rows
        metrics = updater.step(rows, update, update)
    return torch.cat([p.detach().flatten() for p in updater.parameters]), metrics


@pytest.mark.parametrize(
    ("wm", "more", "processes"),
    [
        (WorldModelSettings(), {}, 3),
        (WorldModelSettings.preset("off"), {}, 3),
        (WorldModelSettings(alpha=0.5), {"measure_gradients": True}, 1),
        (WorldModelSettings.preset("echo", placebo=True), {}, 1),
    ],
    ids=["paw", "off", "measured", "placebo"],
)
def test_shared_updates_are_those_of_one_process(
    wm: WorldModelSettings, more: dict[str, Any], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = _counted(monkeypatch, "paw_train.algorithms.update.side_by_side")
    weights, metrics = _learned(3, wm, more)
    expected, expected_metrics = _learned(1, wm, more)
    assert counts == [processes] * 4 + [1] * 4
    assert torch.allclose(weights, expected, rtol=1e-9, atol=1e-11)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("paw_gym/ALFWorld-v0", {"max_steps": 6}),
        ("paw_gym/Rules-v0", {}),
        ("paw_gym/WebShop-v0", {"num_products": 50}),
    ],
)
@pytest.mark.parametrize("mode", ["conversation", "window"])
def test_shared_rollouts_are_those_of_one_process(
    env: str, kwargs: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = _counted(monkeypatch, "paw_train.forks.side_by_side")
    words = "<action> </action> go to take look search [ ] red north desk 1 2 3"
    policy = word_policy([words])
    policy.model.double()
    settings = RolloutSettings(max_response_tokens=8, max_context_tokens=4000)
    found, running = [], []
    for threads in (3, 1):
        torch.set_num_threads(threads)
        pool = EnvPool(env, 4, 2, seed=5, mode=mode, **kwargs)
        for _ in range(2):  # the second begins where the first left the pool's generator
            played = rollout(policy, pool, settings, 7, progress=lambda *n: running.append(n))
            found.append([(t.episode.to_dict(), t.rows, t.offered) for t in played])
            assert [t.episode for t in played] == pool.episodes and not pool.active
    assert counts == [3, 3]
    assert found[:2] == found[2:] and found[0] != found[1]
    assert all(0 <= left <= whole == 8 for left, whole in running)


def test_a_fork_that_fails_or_dies_is_reported(tmp_path: Path) -> None:
    def fail() -> int:
        raise ValueError("no such row")

    def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def last() -> int:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)
        return 0

    def here() -> int:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        return os.getpid()

    assert len(set(side_by_side([os.getpid] * 3))) == 3
    for broken, error, message in (
        (fail, ValueError, "no such row"),
        (die, RuntimeError, r"has died \(exit code -9.*threads=1"),
    ):
        with pytest.raises(error, match=message):
            side_by_side([here, broken, last])
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
        (tmp_path / "pid").unlink()
    with pytest.raises(ValueError, match="no such row"):
        side_by_side([fail, last])
    assert torch.get_num_threads() == 3


def test_large_models_and_single_threads_have_one_process() -> None:
    assert processes_for(torch.nn.Linear(10, 10)) == 3
    assert processes_for(torch.nn.Linear(5000, 5000)) == 1
    assert processes_for(torch.nn.Linear(10, 10, device="meta")) == 1
    torch.set_num_threads(1)
    assert processes_for(torch.nn.Linear(10, 10)) == 1


_KILLED = """
import os, sys, time
from pathlib import Path
from paw_gym.internals.locks import only_process
from paw_train.forks import side_by_side

def work():
    Path(sys.argv[1], "pid").write_text(str(os.getpid()))
    time.sleep(600)

with only_process(Path(sys.argv[1])):
    side_by_side([lambda: time.sleep(600), work])
"""


def test_a_killed_run_leaves_neither_forks_nor_locks(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)])
    note, deadline = tmp_path / "pid", time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(note.read_text())
    assert is_held(tmp_path)
    program.kill()
    program.wait()
    while is_held(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_held(tmp_path)
    assert not os.path.exists(f"/proc/{pid}/exe")  # a zombie has none
