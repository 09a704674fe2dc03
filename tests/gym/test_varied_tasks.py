"""Generators whose tasks alternate between several sizes or settings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from paw_gym import TextEnv
from paw_gym.envs.alfworld.env import ALFWorldEnv
from paw_gym.envs.alfworld.procedural.generate import generate_game
from paw_gym.envs.sokoban import SokobanEnv, sokoban_tasks
from paw_gym.registration import make_text_env


def _env(name: str, **kwargs: Any) -> TextEnv:
    env = make_text_env(f"paw_gym/{name}-v0", **kwargs).unwrapped
    assert isinstance(env, TextEnv)
    return env


def _tasks(env: TextEnv) -> list[Any]:
    return [env.tasks[task_id] for task_id in env.tasks.ids]


def test_sokoban_levels_alternate_between_sizes() -> None:
    env = _env("Sokoban", size=[5, 7], boxes=1, num_tasks=9)
    levels = [task.data for task in _tasks(env)]
    assert Counter((level.width, len(level.goals)) for level in levels) == {(5, 1): 5, (7, 1): 4}
    assert env.tasks is _env("Sokoban", size=[5, 7], boxes=1, num_tasks=9).tasks, "shared by a pool"


def test_one_size_is_the_task_set_that_it_has_always_been() -> None:
    assert _env("Sokoban", size=[7], num_tasks=20).tasks is sokoban_tasks("train", 7, 2, 20)
    mixed = [_env("Sokoban", size=sizes, num_tasks=20).tasks for sizes in ([7, 8], [8, 7])]
    assert len({tasks.fingerprint for tasks in (*mixed, sokoban_tasks("train", 7, 2, 20))}) == 3
    before = "e2fa51650c14"
    assert _env("ALFWorld", num_tasks=12).tasks.fingerprint[:12] == before


def test_alfworld_rooms_have_as_many_receptacles_as_asked() -> None:
    tasks = _tasks(_env("ALFWorld", receptacles=[4, 20], num_tasks=24))
    rooms = Counter((task.type, len(task.data.compiled().receptacles)) for task in tasks)
    assert len(rooms) == 12 and set(rooms.values()) == {2}
    assert {count for _, count in rooms} == {4, 20}
    assert tasks[0].data.json()["variation"] == "modified"


def test_a_number_of_receptacles_is_of_modified_rooms() -> None:
    game = generate_game("train", "look_at_obj_in_light", 3, variation="modified")
    assert game == generate_game("train", "look_at_obj_in_light", 3, "put", "modified", None)
    for kwargs, message in (
        ({"receptacles": 3}, "receptacles is 4 to 20, got 3"),
        ({"receptacles": 8, "variation": "real"}, "receptacles is of variation='modified'"),
        ({"receptacles": []}, "receptacles is a whole number or a list of them"),
        ({"receptacles": [6, 6]}, r"receptacles has a value twice: \[6, 6\]"),
        ({"receptacles": [6, 8], "split": "trian"}, "Unknown split 'trian'"),
    ):
        with pytest.raises(ValueError, match=message):
            ALFWorldEnv(**kwargs)


def test_boxes_that_no_room_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="boxes=2 do not fit into a room of size=5"):
        SokobanEnv(size=[5, 7], boxes=2)


def test_questions_of_mixed_difficulty_have_one_to_three_hops() -> None:
    env = _env("SearchQA", difficulty="mixed", split="train", num_passages=300, num_questions=30)
    assert {len(task.data.hops) for task in _tasks(env)} == {1, 2, 3}


@pytest.mark.original
def test_textworld_games_alternate_between_settings() -> None:
    pytest.importorskip("textworld", reason="make test-original")
    env = _env("TextWorld", game="cooking", settings={"go": [1, 6], "recipe": [1, 2], "cut": 0})
    settings = Counter(task_id.split("/")[2] for task_id in env.tasks.ids)
    assert len(settings) == 4 and max(settings.values()) - min(settings.values()) <= 1
    assert {("go=6" in s, "recipe=2" in s) for s in settings} == {
        (go, recipe) for go in (True, False) for recipe in (True, False)
    }
