"""The suite ends on an environment that does not: which check, which limit, where it was."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from paw_gym import Outcome, Task, check_text_env
from paw_gym.contract import iter_checks
from paw_gym.functional import GeneratorEnv

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.5


def busy(box_env: Any) -> Any:
    class Busy(box_env):  # type: ignore[misc]
        """It computes for ever, and swallows every exception."""

        def _act(self, action: str) -> Any:
            for _ in itertools.count():
                try:
                    sum(range(100))
                except BaseException:
                    continue

    return Busy


def locked(box_env: Any) -> Any:
    class Locked(box_env):  # type: ignore[misc]
        """It waits for ever."""

        def _act(self, action: str) -> Any:
            threading.Event().wait()

    return Locked


def holding_the_interpreter(box_env: Any) -> Any:
    class Matching(box_env):  # type: ignore[misc]
        """A regular expression that takes longer than anybody lives: no other thread may run."""

        def _act(self, action: str) -> Any:
            re.match(r"(a+)+$", "a" * 60 + "b")

    return Matching


@pytest.mark.parametrize("how", [busy, locked, holding_the_interpreter])
def test_a_step_that_does_not_end_fails_one_check(box_env: Any, how: Any) -> None:
    report = check_text_env(
        how(box_env), only=["task_ids", "transitions", "truncation"], time_limit=LIMIT
    )
    assert [r.status for r in report.results] == ["passed", "failed", "skipped"]
    detail = report["transitions"].detail
    assert "did not end within 1.5 s, the time limit of one check" in detail
    assert re.search(r"it was in \S*test_time_limit\.py, line \d+, _act", detail)
    assert "paw check --time-limit 15" in detail and "time_limit=15" in detail
    assert "in _act" in report["transitions"].traceback
    assert report["truncation"].detail == "not run: transitions was stopped before"
    assert report.summary == "1 failed, 1 passed, 1 skipped"


def test_making_the_environment_counts(box_env: Any) -> None:
    def make() -> Any:
        time.sleep(1000)

    report = check_text_env(make, only=["task_ids", "truncation"], time_limit=LIMIT)
    assert report["task_ids"].detail.startswith("making the environment did not end within 1.5 s")
    assert report["truncation"].status == "skipped"


def test_a_process_that_dies_is_named(box_env: Any) -> None:
    class Crashing(box_env):  # type: ignore[misc]
        def _act(self, action: str) -> Any:
            os._exit(7)

    report = check_text_env(Crashing, only=["task_ids", "transitions", "truncation"])
    assert [r.status for r in report.results] == ["passed", "failed", "skipped"]
    assert (
        "the process ended in the middle of this check (exit code 7)" in report.failures[0].detail
    )


def test_an_endless_episode_is_not_played_to_its_end(box_env: Any) -> None:
    def echo(task: Task, rng: Any) -> Any:
        while True:
            yield Outcome("And now?")

    report = check_text_env(
        lambda: GeneratorEnv(echo, [Task("a", "Wait.")], max_steps=10**9),
        only=["truncation", "step_after_end"],
    )
    assert [r.status for r in report.results] == ["skipped", "skipped"]
    assert "max_steps=1,000,000,000" in report["truncation"].detail
    endless = check_text_env(
        box_env, only=["truncation", "step_after_end"], defect="endless", time_limit=None
    )
    assert [r.status for r in endless.results] == ["failed", "skipped"]


@pytest.mark.parametrize("taken", [0, 1])
def test_results_that_nobody_takes_leave_no_process(
    box_env: Any, tmp_path: Path, taken: int
) -> None:
    pid_file = tmp_path / "pid"

    class Waiting(box_env):  # type: ignore[misc]
        def _start(self, task: Any) -> Any:
            if not pid_file.exists():
                pid_file.write_text(str(os.getpid()))
            return super()._start(task)

        def _act(self, action: str) -> Any:
            threading.Event().wait()

    results = iter_checks(Waiting, only=["task_options", "transitions"], time_limit=100)
    assert [next(results).status for _ in range(taken)] == ["passed"] * taken
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)
    del results
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(box_env: Any, limit: float) -> None:
    with pytest.raises(ValueError, match="time_limit is a number of seconds above 0"):
        check_text_env(box_env, time_limit=limit)


THREAD = """
import threading, time
from paw_gym import Outcome, Task, register_text_env
@register_text_env("sleepy/Thread-v0", tasks=[Task("a", "Say a.")], solve=lambda task, rng: ["a"])
def sleepy(task, rng):
    threading.Thread(target=time.sleep, args=(100000,)).start()
    yield Outcome("Well?")
    yield Outcome("Bye.", terminated=True, success=True)
"""


def test_the_program_ends_although_a_thread_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(THREAD)
    command = [sys.executable, "-m", "paw_train.cli", "check", "sleepy:sleepy/Thread-v0"]
    done = subprocess.run(
        [*command, "--only", "reference_solver"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed." in done.stdout
