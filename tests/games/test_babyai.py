"""BabyAI: the view as text, what can be done, and the bot as a guide from anywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest
from playing import play

pytest.importorskip("minigrid", reason="pip install '.[babyai]'")

from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Door, Key

from paw_gym.envs.babyai import ACTIONS, BabyAIEnv, babyai_tasks, levels, open_level, view


def a_room() -> Any:
    """A room of 5 by 5 cells; the agent looks right, at a ball before a wall with a door."""
    engine = open_level("GoToObjS4", 0, 64)
    engine.grid = Grid(7, 7)
    engine.grid.wall_rect(0, 0, 7, 7)
    engine.agent_pos, engine.agent_dir, engine.carrying = (2, 3), 0, None
    engine.grid.set(4, 3, Ball("red"))
    engine.grid.set(3, 1, Key("blue"))
    engine.grid.set(6, 4, Door("green", is_locked=True))
    return engine


def test_the_view() -> None:
    engine = a_room()
    assert view(engine).split("\n") == [
        "You carry nothing.",
        "Ahead: 1 free cell, then a red ball.",
        "To the left: 2 free cells, then a wall.",
        "To the right: 2 free cells, then a wall.",
        "- blue key: 1 ahead, 2 to the left",
        "- red ball: 2 ahead",
        "- locked green door: 4 ahead, 1 to the right",
    ]
    engine.agent_dir = 2
    assert view(engine).split("\n")[-1] == "No object is in view."
    engine.agent_dir, engine.carrying = 0, Key("green")
    assert view(engine).startswith("You carry a green key.\n")


@pytest.mark.parametrize(
    ("place", "direction", "carried", "possible"),
    [
        ((2, 3), 0, None, {"go forward"}),
        ((3, 3), 0, None, {"pick up"}),
        ((3, 3), 0, Key("red"), set()),
        ((2, 3), 0, Key("red"), {"go forward", "drop"}),
        ((5, 4), 0, Key("red"), set()),
        ((5, 4), 0, Key("green"), {"toggle"}),
    ],
)
def test_actions_that_change_something(
    place: tuple[int, int], direction: int, carried: Any, possible: set[str]
) -> None:
    env = BabyAIEnv(num_tasks=1)
    env._engine = a_room()
    env._engine.agent_pos, env._engine.agent_dir = place, direction
    env._engine.carrying = carried
    assert set(env._useful()) == possible | {"turn left", "turn right"}


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc", "UnlockLocal", "PutNextLocal"])
def test_the_bot_solves_it_from_anywhere(level: str) -> None:
    env, rng = BabyAIEnv(level, "test", max_steps=300), random.Random(0)
    for number in range(3):
        env.reset(seed=number)
        for _ in range(number * 3):
            env.step(rng.choice(["turn left", "go forward", "hello"]))
        _, reward, _, _, info = play(env, env.expert())[-1]
        assert info["success"] and info["admissible_actions"] == env.reference_solution() == []
        taken = [action for action in env.state["actions"] if action != "hello"]
        assert reward == pytest.approx(1 - 0.9 * len(taken) / 300)


def test_tasks_are_those_that_the_bot_solves() -> None:
    """Its plan for about half of this level's grids has no end."""
    env = BabyAIEnv("UnlockToUnlock", max_steps=300, num_tasks=3)
    for index in range(3):
        env.reset(seed=0, options={"task_index": index})
        assert env.reference_solution()


def test_no_grid_is_in_two_splits() -> None:
    def grids(split: str) -> set[Any]:
        tasks = babyai_tasks("GoToObj", split, 30)
        starts = [open_level("GoToObj", tasks[number].data, 64) for number in range(30)]
        return {
            (e.grid.encode().tobytes(), tuple(map(int, e.agent_pos)), int(e.agent_dir), e.mission)
            for e in starts
        }

    found = [grids(split) for split in ("train", "valid", "test")]
    assert min(map(len, found)) > 20
    assert len(set.union(*found)) == sum(map(len, found))


def test_levels_and_actions_are_those_of_minigrid() -> None:
    assert "BossLevel" in levels() and "KeyInBox" not in levels()
    names = {
        "left": "turn left",
        "right": "turn right",
        "forward": "go forward",
        "pickup": "pick up",
    }
    actions = open_level("GoToLocal", 0, 64).actions
    assert tuple(names.get(a.name, a.name) for a in actions)[:6] == ACTIONS
