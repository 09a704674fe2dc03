"""TextWorldExpress and ScienceWorld: gold paths, and a virtual machine that all share."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
from playing import play

pytest.importorskip("textworld_express", reason="pip install '.[jvm]'")
pytest.importorskip("scienceworld", reason="pip install '.[jvm]'")

from paw_gym.core import TaskSet
from paw_gym.envs import jvm
from paw_gym.envs.scienceworld import Engine, ScienceWorldEnv, _instruction, science_tasks
from paw_gym.envs.textworld_express import GAMES, TextWorldExpressEnv, express_tasks, new_engine

SPLITS = ("train", "valid", "test")
Make = Callable[[], Any]
express = {game: partial(TextWorldExpressEnv, game, "test") for game in GAMES}
science = partial(ScienceWorldEnv, "test", "find-non-living-thing", variations=1)
of_each = pytest.mark.parametrize("make", [express["coin"], science], ids=["express", "science"])


def walk(env: ScienceWorldEnv, steps: int, seed: int = 0) -> list[str]:
    """Random admissible actions that spoil nothing; what is seen after each."""
    rng, seen = random.Random(seed), []
    for _ in range(steps):
        action = rng.choice([a for a in env.list_actions() if not a.startswith("focus")])
        seen += [action, env.step(action)[0]]
    return seen


@pytest.mark.parametrize("make", [*express.values(), science], ids=[*express, "science"])
def test_the_gold_path_scores_1(make: Make) -> None:
    env = make()
    env.reset(seed=0, options={"task_index": 0})
    answers = play(env, env.reference_solution())
    _, _, terminated, _, info = answers[-1]
    assert terminated and info["success"] and info["score"] == 1.0
    assert all(answer[4]["action_is_valid"] for answer in answers)
    assert sum(answer[1] for answer in answers) == pytest.approx(1.0)


@of_each
def test_the_reference_goes_on_from_elsewhere(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    play(env, ["inventory", env.reference_solution()[0], "what?", "look around"])
    assert play(env, env.reference_solution())[-1][4]["success"]
    assert env.reference_solution() == []


@of_each
def test_half_a_surrogate_pair_is_no_action(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    answers = play(env, ["look around \ud800", "look around"])
    assert [answer[4]["action_is_valid"] for answer in answers] == [False, True]


@pytest.mark.parametrize(
    "sets",
    [
        lambda: [express_tasks(game, "train", "", 8) for game in ("cookingworld", "mapreader")],
        lambda: [science_tasks("train", None, 1)],
    ],
    ids=["express", "science"],
)
def test_threads_read_the_instructions_of_their_own_tasks(
    monkeypatch: pytest.MonkeyPatch, sets: Callable[[], list[TaskSet]]
) -> None:
    """As the episodes of a trainer do: one engine reads the tasks of all."""
    loads = Engine.load

    def load(engine: Engine, *args: Any) -> str:
        seen = loads(engine, *args)
        time.sleep(0.5)  # between what a thread loads and what it asks for
        return seen

    pairs = [(tasks, tasks.ids[number]) for number in range(4) for tasks in sets()]
    expected = [tasks[task_id].instruction for tasks, task_id in pairs]
    _instruction.cache_clear()
    monkeypatch.setattr(Engine, "load", load)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: pair[0][pair[1]].instruction, pairs)) == expected


def test_the_splits_are_those_of_the_engines() -> None:
    ids = [set(science_tasks(split, None, None).ids) for split in SPLITS]
    assert len(set.union(*ids)) == sum(map(len, ids)) == 7207
    engine = Engine()
    engine.game.load("freeze", 0, "", False)
    valid = {int(i.split("/")[1]) for i in ids[1] if i.startswith("freeze/")}
    assert valid == set(engine.game.getVariationsDev())

    seeds = [{i.rpartition("/")[2] for i in express_tasks("twc", s, "", None).ids} for s in SPLITS]
    assert [*map(len, seeds)] == [1000] * 3 and len(set.union(*seeds)) == 3000
    other = new_engine()
    other.load("twc", "")
    assert seeds[1] == set(map(str, other.getSeedsDev()))


def test_the_expert_keeps_to_one_solution() -> None:
    """TextWorldExpress finds another gold path each time it is asked."""
    env = express["coin"]()
    for index in range(12):
        env.reset(seed=0, options={"task_index": index})
        assert play(env, env.expert())[-1][4]["success"]


def test_a_task_is_spoilt() -> None:
    env = ScienceWorldEnv("test", "boil", variations=1)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("focus on air")
    assert terminated and not info["success"]
    assert (reward, info["score"]) == (-1.0, 0.0)


def test_a_game_goes_the_same_whatever_others_do() -> None:
    """The engine has one random generator and one counter of objects for all."""
    env = ScienceWorldEnv("train", "mendelian-genetics-known-plant", variations=1)
    env.reset(seed=0)
    actions = ["open door to hallway", "go to hallway", "open door to greenhouse"]
    actions += ["go to greenhouse", "open bee hive", *["wait", "look around"] * 3]
    alone = [answer[0] for answer in play(env, actions)]

    env.reset(seed=0)
    other = ScienceWorldEnv("test", "grow-fruit", variations=1, simplifications="easy")
    other.reset(seed=0)
    beside = []
    for number, action in enumerate(actions):
        if number % 3 == 0:
            walk(other, 1)
        beside.append(env.step(action)[0])
        env.list_actions()
    assert beside == alone
    assert "bee" in "".join(alone)


def test_a_copy_and_a_restored_state_go_on_the_same() -> None:
    env = ScienceWorldEnv("train", "chemistry-mix-paint-secondary-color", variations=1)
    env.reset(seed=0)
    walk(env, 3)
    state, twin = env.save_state(), copy.deepcopy(env)
    expected = walk(env, 4, seed=1)
    assert walk(twin, 4, seed=1) == expected
    env.restore_state(state)
    assert walk(env, 4, seed=1) == expected


def test_what_is_listed_is_accepted_and_only_who_asks_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ScienceWorldEnv("train", "boil", variations=1)
    _, info = env.reset(seed=0)
    state, listed = env.save_state(), env.list_actions()
    assert len(set(listed)) == len(listed) > 50
    for action in random.Random(0).sample(listed, 12):
        assert env.is_admissible(action)
        assert env.step(action)[4]["action_is_valid"]
        env.restore_state(state)
    monkeypatch.setattr(Engine, "valid_actions", lambda self: pytest.fail("nobody asked"))
    for _ in range(2):
        assert info["admissible_actions"] is None
        info = env.step("look around")[4]


def test_a_question_is_answered_by_a_number() -> None:
    env = ScienceWorldEnv("train", "boil", variations=1)
    env.reset(seed=0)
    observation, *_, info = env.step("open door")
    assert observation.startswith("Ambiguous request") and info["action_is_valid"]
    assert env.list_actions()[:2] == ["0", "1"]
    assert "now open" in env.step("1")[0]


def test_one_machine_serves_all() -> None:
    started = jvm._started.cache_info().misses
    for _ in range(3):
        express["coin"]().reset(seed=0)
    assert jvm._started.cache_info().misses == max(1, started)


def test_threads_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    @lru_cache(maxsize=8)
    def started(*_: object) -> Any:
        time.sleep(0.1)
        return SimpleNamespace(jvm=None)

    monkeypatch.setattr(jvm, "_started", started)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: jvm.gateway("textworld_express", "x.jar", "x", "jvm"), range(4)))
    assert started.cache_info().misses == 1


def _begin_elsewhere(held: list[TextWorldExpressEnv]) -> None:
    held.clear()
    gc.collect()
    express["coin"]().reset(seed=0)


def test_a_fork_leaves_the_machine_of_the_first_alone() -> None:
    """Java objects that it inherited and drops are still in use here."""
    held = [express["coin"]()]
    held[0].reset(seed=0)
    child = multiprocessing.get_context("fork").Process(target=_begin_elsewhere, args=(held,))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    assert held[0].reset(seed=0)[0] == express["coin"]().reset(seed=0)[0]
    assert play(held[0], held[0].reference_solution())[-1][4]["success"]
