"""The suite passes a sound environment, fails a broken one, and ends on one that does not end."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from programs import said

from paw_gym import Outcome, Task, TaskSet, TextEnv, check_text_env
from paw_gym.contract import CHECKS, ContractViolation, iter_checks
from paw_gym.functional import GeneratorEnv
from paw_gym.registration import text_env_spec

DEFECTS = [
    ("repeated ids", "task_ids", "repeated"),
    ("no instruction", "task_ids", "its instruction is"),
    ("unhashed tasks", "fingerprint", "differs between two instances"),
    ("ignores options", "task_options", "started task"),
    ("silent about unknown ids", "task_options", "raised nothing; expected KeyError"),
    ("curt about unknown ids", "task_options", "does not name the nearest id"),
    ("no solver", "reference_solver", "no reference solver"),
    ("wrong solver", "reference_solver", "the solution of 1 actions does not end in success"),
    ("late solver", "reference_solver", "ended after 20 of 22 actions"),
    ("warns", "check_env", "something looks odd"),
    ("narrow space", "check_env", "check_env failed"),
    ("missing template", "check_env_agent_window", "no such template"),
    ("missing template", "check_env_agent_conversation", "no such template"),
    ("unseeded generator", "vector_sync", "of a vector environment"),
    ("process id", "vector_async", "of a vector environment"),
    ("unseeded generator", "determinism", "observation differs"),
    ("global generator", "determinism", "with the same seed"),
    ("remembers resets", "determinism", "a used instance"),
    ("acting solver", "determinism", "after a call of reference_solution()"),
    ("unhashed tasks", "determinism", "a new instance has another tasks.fingerprint"),
    ("one task only", "seeded_task_choice", "all chose task"),
    ("unseeded task choice", "seeded_task_choice", "different tasks"),
    ("global generator", "global_random_state", "Python's global"),
    ("global numpy generator", "global_random_state", "NumPy's global"),
    ("class state", "independent_instances", "next to another one"),
    ("unsaved counter", "save_restore", "restored after"),
    ("generator not restored", "save_restore", "restored after"),
    ("uncopyable state", "save_restore", "Keep in it what can be copied"),
    ("unsaved counter", "save_restore_agent", "restored after"),
    ("shared state", "saved_state_is_frozen", "restored again"),
    ("uncopyable state", "copies", "Keep in it what can be copied"),
    ("missing key", "info_keys", "lacks 'score'"),
    ("int for bool", "info_keys", "success is an int, 0; expected True or False"),
    ("score of 3", "info_keys", "a number from 0 to 1"),
    ("bytes", "invalid_actions", "observation is a bytes"),
    ("tuple of actions", "info_keys", "holds a tuple"),
    ("numpy in info", "info_keys", "float64"),
    ("won at reset", "info_keys", "already True"),
    ("lists too much", "admissible_actions", "was not accepted"),
    ("raises on junk", "invalid_actions", "raised ValueError"),
    ("accepts junk", "invalid_actions", "is True"),
    ("empty last observation", "transitions", "last observation is empty"),
    ("endless", "truncation", "went on after"),
    ("early truncation", "truncation", "truncated after 5 steps"),
    ("goes on after the end", "step_after_end", "did not raise"),
    ("not a number", "records_jsonl", "no number for"),
    ("unencodable", "records_parquet", "surrogates"),
]


def test_every_check_has_a_defect_that_it_finds() -> None:
    assert {check for _, check, _ in DEFECTS} == set(CHECKS) - {"other_process"}


@pytest.mark.parametrize(("defect", "check", "reason"), DEFECTS)
def test_a_broken_environment_fails(box_env: Any, defect: str, check: str, reason: str) -> None:
    report = check_text_env(box_env, only=[check], defect=defect, time_limit=None)
    assert [result.name for result in report.failures] == [check]
    assert reason in report[check].detail
    with pytest.raises(ContractViolation, match=check):
        report.raise_for_failures()


def test_a_global_generator_that_is_always_seeded_alike_is_noticed(box_env: Any) -> None:
    only = ["determinism", "global_random_state"]  # the first one plays and leaves it so
    report = check_text_env(box_env, only=only, defect="seeds the generator", time_limit=None)
    assert [result.name for result in report.failures] == only[1:]


FRUIT = """
from paw_gym import Outcome, Task, register_text_env

@register_text_env("fruit/{name}-v0", tasks=[Task("a", "Say.")], solve=lambda task, rng: ["x"])
def fruit(task, rng):
    yield Outcome(" ".join({order}({{"apple", "pear", "plum", "fig", "kiwi", "lime", "date", "nut"}})))
    yield Outcome("Thanks.", 1.0, True, True)
"""


@pytest.mark.parametrize(("order", "found"), [("sorted", "2 episodes"), ("list", "PYTHONHASHSEED")])
def test_an_order_that_hashes_decide_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, found: str
) -> None:
    (tmp_path / f"fruit_{order}.py").write_text(FRUIT.format(name=order.title(), order=order))
    monkeypatch.syspath_prepend(tmp_path)
    env_id = f"fruit_{order}:fruit/{order.title()}-v0"
    assert found in check_text_env(env_id, only=["other_process"])["other_process"].detail


def test_a_sound_environment_passes_from_its_class(box_env: Any) -> None:
    report = check_text_env(box_env, tasks=2)
    report.raise_for_failures()
    assert [result.name for result in report.results] == list(CHECKS)
    assert "20 steps" in report["truncation"].detail
    assert not check_text_env(box_env, only=[]).results


def parrot(task: Task, rng: Any) -> Any:
    """A free-form environment: any string is accepted."""
    said = yield Outcome(f"Number {rng.integers(100)}. Say the word.")
    while said != task.data:
        said = yield Outcome(f"You said {said[:20]!r}. Say the word.")
    yield Outcome("Thanks.", reward=1.0, terminated=True, success=True)


def test_wrong_arguments_are_named(box_env: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        check_text_env(box_env, tasks=0)
    with pytest.raises(KeyError, match="boxes/3"):
        check_text_env(box_env, tasks=["boxes/3x"])
    for limit in (0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time_limit is a number of seconds above 0"):
            check_text_env(box_env, time_limit=limit)


def test_parquet_is_skipped_without_pyarrow(box_env: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("paw_gym.contract.episodes.find_spec", lambda name: None)
    report = check_text_env(box_env, only=["records_parquet"])
    assert report.passed and report["records_parquet"].status == "skipped"


class Ice(TextEnv):
    """Three steps to the shore; each slips back with a probability that the agent does not foresee."""

    def __init__(
        self, slip: float = 0.4, solver: str = "reference", render_mode: Any = None
    ) -> None:
        self.slip, self.solver = slip, solver
        tasks = [Task(str(n), "Reach the shore.") for n in range(2)]
        super().__init__(TaskSet.from_tasks(tasks), 30, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = 0
        return Outcome("Ice.")

    def _act(self, action: str) -> Outcome:
        if action != "go":
            return Outcome("Say go.", action_is_valid=False)
        slips = self.np_random.random() < self.slip
        self.state = max(0, self.state - 1) if slips else self.state + 1
        done = self.state == 3
        return Outcome(f"At {self.state}.", reward=float(done), terminated=done, success=done)

    def reference_solution(self) -> list[str]:
        if self.solver == "expert":
            return super().reference_solution()
        return ["go"] * (3 - self.state)

    def expert(self) -> Any:
        if self.solver == "failing expert":
            raise ZeroDivisionError("no advice")
        return (lambda: "go") if self.solver == "expert" else super().expert()


@pytest.mark.parametrize("solver", ["reference", "expert"])
def test_a_sound_stochastic_world_passes(solver: str) -> None:
    check_text_env(Ice, solver=solver, only=["reference_solver"]).raise_for_failures()


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"slip": 1.0}, "does not end in success"),  # nobody gets there
        ({"slip": 1.0, "solver": "expert"}, "Nor does expert() reach success in 5 episodes"),
        ({"slip": 0.0, "solver": "failing expert"}, "ZeroDivisionError: no advice"),
    ],
)
def test_a_world_that_cannot_be_won_fails(kwargs: dict[str, Any], reason: str) -> None:
    report = check_text_env(Ice, only=["reference_solver"], **kwargs)
    assert reason in report["reference_solver"].detail


def test_the_solver_is_tried_on_every_task_of_a_small_set() -> None:
    tasks = [Task(str(n), "Say the word.", data="word") for n in range(12)]

    def solve(task: Task, rng: Any) -> list[str]:
        return [] if task.id == "7" else ["word"]

    make, only = partial(GeneratorEnv, parrot, tasks, 4, solve=solve), ["reference_solver"]
    assert not check_text_env(make, tasks=3, only=only).passed
    assert check_text_env(make, tasks=["1", "2"], only=only).passed


def test_it_keeps_the_contract(own_env: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = own_env
    check_text_env(env_id, tasks=2, seed=1, time_limit=None, **kwargs).raise_for_failures()
    assert text_env_spec(env_id).description


def test_a_split_is_one_name(own_env: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = own_env
    with pytest.raises(ValueError, match=r"Unknown .*split \['train'\]"):
        gym.make(env_id, disable_env_checker=True, **{**kwargs, "split": ["train"]})


@pytest.mark.parametrize("split", ["train", "valid_seen"])
def test_alfworld_keeps_it_on_real_games(split: str, alfworld_data: Path) -> None:
    check_text_env(
        "paw_gym/ALFWorld-v0", tasks=6, seed=2, split=split, data_dir=alfworld_data, time_limit=None
    ).raise_for_failures()


def test_alfworld_keeps_it_with_the_newer_grammar() -> None:
    check_text_env(
        "paw_gym/ALFWorld-v0", split="valid_unseen", grammar="move", time_limit=None
    ).raise_for_failures()


LIMIT = 4.0


def busy() -> None:
    """Computes for ever, and swallows every exception."""
    for _ in itertools.count():
        try:
            sum(range(100))
        except BaseException:
            continue


def locked() -> None:
    """Waits for ever."""
    threading.Event().wait()


def holding_the_interpreter() -> None:
    """A regular expression that takes longer than anybody lives: no other thread may run."""
    re.match(r"(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize("how", [busy, locked, holding_the_interpreter])
def test_a_step_that_does_not_end_fails_one_check(box_env: Any, how: Any) -> None:
    class Stuck(box_env):
        def _act(self, action: str) -> Any:
            how()

    names = ["task_ids", "transitions", "truncation"]
    report = check_text_env(Stuck, only=names, time_limit=LIMIT)
    assert [r.status for r in report.results] == ["passed", "failed", "skipped"]
    detail = report["transitions"].detail
    assert "did not end within 4 s, the time limit of one check" in detail
    assert re.search(rf"it was in \S*test_contract\.py, line \d+, {how.__name__}", detail)
    assert "paw check --time-limit 40" in detail and "time_limit=40" in detail
    assert "in _act" in report["transitions"].traceback
    assert report["truncation"].detail == "not run: transitions was stopped before"
    assert report.summary == "1 failed, 1 passed, 1 skipped"


def test_making_the_environment_counts(box_env: Any) -> None:
    def make() -> Any:
        time.sleep(1000)

    report = check_text_env(make, only=["task_ids", "truncation"], time_limit=LIMIT)
    assert report["task_ids"].detail.startswith("making the environment did not end within 4 s")
    assert report["truncation"].status == "skipped"


def test_a_constructor_that_ends_the_process_or_has_its_own_error_is_named() -> None:
    class DataError(ValueError):
        def __init__(self, path: str, line: int) -> None:
            super().__init__(f"{path}, line {line}: damaged")

    def make() -> Any:
        raise DataError("levels.txt", 3)

    report = check_text_env(lambda: os._exit(3), only=["task_ids", "truncation"])
    assert [r.status for r in report.results] == ["failed", "skipped"]
    assert report["task_ids"].detail == "making the environment ended the process (exit code 3)"
    with pytest.raises(ValueError, match=r"DataError: levels\.txt, line 3: damaged"):
        check_text_env(make)


def test_a_process_that_dies_is_named(box_env: Any) -> None:
    class Crashing(box_env):
        def _act(self, action: str) -> Any:
            os._exit(7)

    report = check_text_env(Crashing, only=["task_ids", "transitions", "truncation"])
    assert [r.status for r in report.results] == ["passed", "failed", "skipped"]
    assert report.failures[0].detail == "ended the process (exit code 7)"


def test_an_endless_episode_is_not_played_to_its_end(box_env: Any) -> None:
    def echo(task: Task, rng: Any) -> Any:
        while True:
            yield Outcome("And now?")

    only = ["truncation", "step_after_end"]
    make = partial(GeneratorEnv, echo, [Task("a", "Wait.")], max_steps=10**9)
    report = check_text_env(make, only=only)
    assert [r.status for r in report.results] == ["skipped", "skipped"]
    assert "max_steps=1,000,000,000" in report["truncation"].detail
    endless = check_text_env(box_env, only=only, defect="endless", time_limit=None)
    assert [r.status for r in endless.results] == ["failed", "skipped"]


@pytest.mark.parametrize("taken", [0, 1])
def test_results_that_nobody_takes_leave_no_process(
    box_env: Any, tmp_path: Path, taken: int
) -> None:
    pid_file = tmp_path / "pid"

    class Waiting(box_env):
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
    command = ["paw_train.cli", "check", "sleepy:sleepy/Thread-v0", "--only", "reference_solver"]
    assert "1 passed." in said("-m", *command, path=tmp_path)
