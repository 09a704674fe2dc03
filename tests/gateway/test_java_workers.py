"""Worlds on the Java virtual machine in a gateway's workers: each has a machine of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("scienceworld", reason="pip install '.[jvm]'")

from paw_gym import EnvPool, make_remote
from paw_gym.envs.scienceworld import ScienceWorldEnv

from .conftest import RunningGateway, children

WORLD = "paw_gym/ScienceWorld-v0"
COMMANDS = ("look around", "open door to hallway", "no such thing", "go to hallway", "inventory")


def workers_with_java(gateway: RunningGateway) -> list[int]:
    return [worker for worker in gateway.workers() if children(worker)]


def played(pool: EnvPool, crash: Callable[[], None] = lambda: None) -> list[Any]:
    """Two groups of two, and a step of one of them from a state in mid-episode."""
    first, *_ = pool.reset([pool.tasks.ids[0], pool.tasks.ids[-1]])
    env, before = pool.env_of(first), {}
    for number, command in enumerate(COMMANDS):
        if number == 2:
            before = env.save_state()
            crash()
        pool.step([pool.env_of(slot).response_for(command) for slot in pool.active])
    env.restore_state(before)
    actions = env.text_env.list_actions()
    assert actions is not None and "look around" in actions
    branch = env.step(env.response_for("go to hallway"))[-1]["transition"]
    records = [record.to_dict() for record in (*pool.episodes, branch)]
    pool.close()
    return records


def test_a_pool_over_two_machines_of_which_one_dies_records_the_same(
    serve: Callable[..., RunningGateway],
) -> None:
    gateway = serve("--workers", "2")
    at = {"url": gateway.url, "remote_id": WORLD, "split": "test"}

    def crash() -> None:
        machines = workers_with_java(gateway)
        assert len(machines) == 2
        os.kill(machines[0], signal.SIGKILL)

    there = played(EnvPool("paw_gym/Remote-v0", 2, 2, **at), crash)
    assert there == played(EnvPool(WORLD, 2, 2, split="test"))
    assert [episode["error"] for episode in there[:-1]] == [None] * 4


def test_what_it_lists_only_when_asked_is_listed_from_afar(
    serve: Callable[..., RunningGateway],
) -> None:
    there, local = make_remote(serve("--workers", "1").url, WORLD), ScienceWorldEnv()
    for env in (there, local):
        env.reset(seed=3)
        assert env.step("look around")[4]["admissible_actions"] is None
    listed = local.list_actions()
    assert there.list_actions() == listed and len(listed) > 50
    assert there.is_admissible(listed[0]) and not there.is_admissible("no such thing")
    there.close()
