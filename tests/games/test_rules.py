"""Rules: the same hidden rules in every task of a world, and starts far from their goals."""

from __future__ import annotations

import itertools

import pytest

from paw_gym.envs.rules import DISTANCE, ROOMS, VERBS, RulesEnv, make_world, rules_tasks

SPLITS = ("train", "valid", "test")


@pytest.mark.parametrize("number", range(30))
def test_a_world(number: int) -> None:
    world = make_world(number)
    assert all(1 <= len(ways) <= 2 for ways in world.ways.values())
    for start, goal in world.pairs:
        path = world.path(start, goal)
        room = start
        for verb in path:
            room = world.ways[room][verb]
        assert room == goal and len(path) >= DISTANCE
        # no shorter sequence of verbs gets there: all rooms within one verb less than the path
        near = {start}
        for _ in path[1:]:
            near |= {room for place in near for room in world.ways[place].values()}
        assert goal not in near


def test_splits_share_no_pair_and_have_all_of_them() -> None:
    pairs = [{t.data[1:] for t in rules_tasks(split, 7, 1, None)} for split in SPLITS]
    assert all(not a & b for a, b in itertools.combinations(pairs, 2))
    assert set.union(*pairs) == set(make_world(7).pairs)
    assert len(pairs[0]) > len(pairs[1]) > 3


def test_the_rules_are_those_of_the_world_whatever_the_task() -> None:
    env = RulesEnv(world=3)
    found: dict[tuple[str, str], set[str]] = {}
    for seed, task_id in enumerate(env.tasks.ids):
        env.reset(seed=seed, options={"task_id": task_id})
        over = False
        while not over:
            before, verb = env.state, VERBS[int(env.np_random.integers(4))]
            observation, _, terminated, over, info = env.step(verb)
            assert info["action_is_valid"] and f" {env.state}. " in observation
            found.setdefault((before, verb), set()).add(env.state)
            over = over or terminated
    assert len(found) > len(ROOMS) and all(len(rooms) == 1 for rooms in found.values())


def test_lamps_are_chance_and_the_seeds() -> None:
    env = RulesEnv()
    task = {"task_id": env.tasks.ids[0]}
    lamps = [env.reset(seed=seed, options=task)[0].split()[-1] for seed in range(60)]
    assert len(set(lamps)) == 6
    assert lamps == [env.reset(seed=seed, options=task)[0].split()[-1] for seed in range(60)]


def test_several_worlds_have_rules_of_their_own() -> None:
    env = RulesEnv(world=10, worlds=40)
    assert {task.data[0] for task in env.tasks} == set(range(10, 50))
    assert len({str(make_world(number)) for number in range(10, 50)}) == 40
