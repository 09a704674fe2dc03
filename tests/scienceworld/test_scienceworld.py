"""ScienceWorld: gold paths through our environment, and games that share a virtual machine undisturbed."""

from __future__ import annotations

import copy
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("scienceworld", reason="pip install '.[jvm]'")

from paw_gym.envs import jvm
from paw_gym.envs.scienceworld import Engine, ScienceWorldEnv, _instruction, science_tasks

SPLITS = ("train", "valid", "test")
QUICK = "find-non-living-thing"


def walk(env: ScienceWorldEnv, steps: int, seed: int = 0) -> list[str]:
    """Random admissible actions that spoil nothing; what is seen after each."""
    rng, seen = random.Random(seed), []
    for _ in range(steps):
        action = rng.choice([a for a in env.list_actions() if not a.startswith("focus")])
        seen += [action, env.step(action)[0]]
    return seen


def test_the_gold_path_scores_1() -> None:
    env = ScienceWorldEnv("test", QUICK, variations=1)
    env.reset(seed=0)
    total = 0.0
    for action in env.reference_solution():
        _, reward, terminated, _, info = env.step(action)
        assert info["action_is_valid"]
        total += reward
    assert terminated and info["success"] and info["score"] == 1.0
    assert total == pytest.approx(1.0)


def test_the_reference_goes_on_from_elsewhere() -> None:
    env = ScienceWorldEnv("test", QUICK, variations=1)
    env.reset(seed=0)
    for action in ("inventory", env.reference_solution()[0], "what?", "look around"):
        env.step(action)
    for action in env.reference_solution():
        *_, info = env.step(action)
    assert info["success"]


def test_a_task_is_spoilt() -> None:
    env = ScienceWorldEnv("test", "boil", variations=1)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("focus on air")
    assert terminated and not info["success"]
    assert (reward, info["score"]) == (-1.0, 0.0)


def test_a_game_goes_the_same_whatever_others_do() -> None:
    """The engine has one generator, one counter of objects and one list of simplifications for all."""
    env = ScienceWorldEnv("train", "mendelian-genetics-known-plant", variations=1)
    env.reset(seed=0)
    actions = [
        "open door to hallway",
        "go to hallway",
        "open door to greenhouse",
        "go to greenhouse",
    ]
    actions += [
        "open bee hive",
        "wait",
        "look around",
        "wait",
        "look around",
        "wait",
        "look around",
    ]
    alone = [env.step(action)[0] for action in actions]

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


def test_the_splits_are_those_of_the_engine() -> None:
    ids = [set(science_tasks(split, None, None).ids) for split in SPLITS]
    assert len(set.union(*ids)) == sum(map(len, ids)) == 7207
    engine = Engine()
    engine.game.load("freeze", 0, "", False)
    assert {int(i.split("/")[1]) for i in ids[1] if i.startswith("freeze/")} == set(
        engine.game.getVariationsDev()
    )


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"task": "boiling"}, "Unknown task 'boiling'. Did you mean 'boil'"),
        ({"split": "dev"}, "Unknown split 'dev'"),
        ({"simplifications": "easy,openDoor"}, "Unknown simplification 'openDoor'"),
        ({"simplifications": None}, "simplifications is a str, .*got None"),
        ({"simplifications": ["easy"]}, r"simplifications is a str, .*got \['easy'\]"),
        ({"variations": -1}, "variations is -1; expected a whole number of 1 or more, or None"),
    ):
        with pytest.raises(ValueError, match=message):
            ScienceWorldEnv(**kwargs)  # type: ignore[arg-type]


def test_half_a_surrogate_pair_is_no_action() -> None:
    env = ScienceWorldEnv(task="boil", variations=1)
    env.reset(seed=0)
    *_, info = env.step("look \ud800")
    assert not info["action_is_valid"]
    *_, info = env.step("look around")
    assert info["action_is_valid"]


def test_threads_read_the_instructions_of_their_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the episodes of a trainer do: one engine reads the tasks of all."""
    loads = Engine.load

    def load(engine: Engine, *args: Any) -> str:
        seen = loads(engine, *args)
        time.sleep(0.5)  # between what a thread loads and what it asks for
        return seen

    tasks = science_tasks("train", None, 1)
    ids = list(tasks.ids[:4])
    expected = [tasks[task_id].instruction for task_id in ids]
    _instruction.cache_clear()
    monkeypatch.setattr(Engine, "load", load)
    with ThreadPoolExecutor(len(ids)) as threads:
        assert list(threads.map(lambda task_id: tasks[task_id].instruction, ids)) == expected


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = jvm.util.find_spec
    monkeypatch.setattr(
        jvm.util, "find_spec", lambda name: None if name == "scienceworld" else found(name)
    )
    with pytest.raises(
        jvm.JavaMissingError, match=r"package scienceworld, .*pip install '.\[jvm\]'"
    ):
        Engine()
