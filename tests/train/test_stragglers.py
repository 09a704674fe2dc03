"""``rollout.episode_seconds``: an environment that hangs costs its own episode, and no more."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
import torch
from rows import transitions
from servers import RunningServer

from paw_gym import Outcome, Task, make_remote
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import EnvPool, OutOfTimeError, within
from paw_gym.wrappers import AgentInterface
from paw_train.reporting.run.alarms import find_alarms
from paw_train.rollouts.rollout import Trajectory, rollout, timed_out
from paw_train.settings.rollout import RolloutSettings
from paw_train.training.environments import outcome_metrics

LIMIT = 3.0
HANGING = Path(__file__).parents[1] / "gateway"


def _loop() -> None:
    while True:
        pass


def _wait() -> None:
    threading.Event().wait(600)


def _rollout(mode: str, hang: Callable[[], None], where: int) -> list[Trajectory]:
    """Two groups of three episodes of three steps; the second episode hangs at one."""
    numbers = itertools.count()

    def make() -> AgentInterface:
        number = next(numbers)

        def play(task: Task, rng: Any) -> Iterator[Outcome]:
            for step in range(3):
                if (number, step) == (1, where):
                    hang()
                yield Outcome(f"step {step}", reward=1.0)
            yield Outcome("end", reward=1.0, terminated=True, success=True)

        return AgentInterface(GeneratorEnv(play, [Task("0", "a"), Task("1", "b")], 9), mode=mode)

    pool = EnvPool(make, 2, 3, seed=2)
    settings = RolloutSettings(max_response_tokens=12, episode_seconds=LIMIT)
    policy = hostile.tiny_policy()
    return rollout(policy, pool, settings, torch.Generator().manual_seed(1), ["0", "1"])


@pytest.mark.parametrize("hang", [_loop, _wait], ids=["python", "system"])
@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_a_step_that_hangs_ends_its_episode_alone(mode: str, hang: Callable[[], None]) -> None:
    before = time.monotonic()
    trajectories = _rollout(mode, hang, 2)
    assert time.monotonic() - before < 300
    assert [timed_out(t.episode) for t in trajectories] == [False, True, *[False] * 4]
    late = trajectories[1]
    assert late.episode.error is None and not late.episode.success
    *answered, last = late.episode.transitions
    assert len(answered) == 1 and last.truncated and last.reward == 0.0
    assert last.next_observation == ""
    (*_, (_, action, observed)) = transitions(late.rows)
    assert action and not observed
    assert all(len(t.episode.transitions) == 3 for t in trajectories if t is not late)
    metrics = outcome_metrics(trajectories)
    assert (metrics["timed_out_episodes"], metrics["failed_episodes"]) == (1, 0)
    assert metrics["success_rate"] == pytest.approx(5 / 6)
    records = [{**metrics, "update": 1}, {**metrics, "update": 2}, {"update": 3}]
    [alarm] = [a for a in find_alarms(records) if a.title == "Episodes ran out of time"]
    assert (alarm.first, alarm.last, alarm.ongoing) == (1, 2, False)


def test_a_reset_that_hangs_fails_its_episode() -> None:
    trajectories = _rollout("window", _wait, 0)
    assert "OutOfTimeError" in (trajectories[1].episode.error or "")
    assert outcome_metrics(trajectories)["failed_episodes"] == 1


def test_python_code_that_hangs_is_stopped() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(OutOfTimeError, match="longer than"):
        within(0.2, _loop)
    left = set(threading.enumerate()) - threads
    for thread in left:
        thread.join(120)
    assert not any(thread.is_alive() for thread in left)
    with pytest.raises(ZeroDivisionError):
        within(9, lambda: 1 // 0)


def test_a_worker_of_a_gateway_that_hangs() -> None:
    """The gateway's own limit is longer: the episode ends here, its worker there."""
    pytest.importorskip("fastapi", reason="the extra `server`")
    words = ["--import", "troubles", "--workers", "2", "--step-seconds", "8"]
    path = {"PYTHONPATH": f"{HANGING.parents[1]}:{HANGING}"}
    server = RunningServer("gateway", *words, **path)
    try:
        pool = EnvPool(lambda: AgentInterface(make_remote(server.url, "tests/Trouble-v0")), 1, 2)
        pool.reset(["t"])  # starts both workers
        pool.episode_seconds = LIMIT
        hanging, going = (f"<action>{word}</action>" for word in ("hang", "go on"))
        left = pool.step([hanging, going])
        assert [slot.index for slot in left] == [1]
        assert [timed_out(episode) for episode in pool.episodes] == [True, False]
        assert pool.step([going]) == left and pool.episodes[1].error is None
    finally:
        server.kill()
