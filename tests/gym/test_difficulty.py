"""Difficulty cells: what environments say about their tasks, and generators with several difficulties."""

from __future__ import annotations

from typing import Any

import pytest

from paw_gym import EnvPool, Outcome, Task, TaskSet, TextEnv
from paw_gym.envs.alfworld.env import ALFWorldEnv
from paw_gym.envs.alfworld.procedural.generate import generate_game
from paw_gym.envs.sokoban import SokobanEnv, sokoban_tasks
from paw_gym.functional import GeneratorEnv
from paw_gym.registration import make_text_env
from paw_gym.validation import EnvDefinitionError
from paw_gym.wrappers import AgentInterface


def _env(name: str, **kwargs: Any) -> TextEnv:
    env = make_text_env(f"paw_gym/{name}-v0", **kwargs).unwrapped
    assert isinstance(env, TextEnv)
    return env


def _cells(env: TextEnv) -> dict[str, list[str]]:
    return EnvPool(lambda: AgentInterface(env)).cells()


def test_sokoban_levels_are_of_the_size_that_their_cell_names() -> None:
    env = _env("Sokoban", size=[5, 7], boxes=1, num_tasks=9)
    cells = _cells(env)
    assert {cell: len(ids) for cell, ids in cells.items()} == {"5x5-1": 5, "7x7-1": 4}
    for cell, ids in cells.items():
        for task_id in ids:
            level = env.tasks[task_id].data
            assert f"{level.width}x{level.width}-{len(level.goals)}" == cell
    assert env.tasks is _env("Sokoban", size=[5, 7], boxes=1, num_tasks=9).tasks, "shared by a pool"


def test_one_difficulty_is_the_task_set_that_it_has_always_been() -> None:
    assert _env("Sokoban", size=[7], num_tasks=20).tasks is sokoban_tasks("train", 7, 2, 20)
    mixed = [_env("Sokoban", size=sizes, num_tasks=20).tasks for sizes in ([7, 8], [8, 7])]
    assert len({tasks.fingerprint for tasks in (*mixed, sokoban_tasks("train", 7, 2, 20))}) == 3
    before = "e2fa51650c14"
    assert _env("ALFWorld", num_tasks=12).tasks.fingerprint[:12] == before


def test_alfworld_rooms_have_as_many_receptacles_as_their_cell_says() -> None:
    env = _env("ALFWorld", receptacles=[4, 20], num_tasks=24)
    cells = _cells(env)
    assert len(cells) == 12 and {len(ids) for ids in cells.values()} == {2}
    for cell, ids in cells.items():
        task = env.tasks[ids[0]]
        assert cell == f"{task.type}-{len(task.data.compiled().receptacles)}"
        assert task.data.json()["variation"] == "modified"
    plain = _env("ALFWorld", num_tasks=24)
    assert plain.difficulty(plain.tasks.ids[0]) == plain.tasks[0].type
    official = "train/pick_and_place_simple-Mug-None-Shelf-303/trial_T2019"
    assert plain.difficulty(official) == "pick_and_place_simple"


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


def test_questions_are_divided_by_hops() -> None:
    env = _env("SearchQA", difficulty="mixed", split="train", num_passages=300, num_questions=30)
    cells = _cells(env)
    assert set(cells) == {"1hop", "2hop", "3hop"}
    for cell, ids in cells.items():
        assert {len(env.tasks[task_id].data.hops) for task_id in ids} == {int(cell[0])}
    assert env.difficulty("nq/dev/17") is None


@pytest.mark.original
def test_textworld_names_the_settings_that_differ() -> None:
    pytest.importorskip("textworld", reason="make test-original")
    env = _env("TextWorld", game="cooking", settings={"go": [1, 6], "recipe": [1, 2], "cut": 0})
    cells = _cells(env)
    assert set(cells) == {"go1-recipe1", "go1-recipe2", "go6-recipe1", "go6-recipe2"}
    assert "go=6" in cells["go6-recipe2"][0] and "recipe=2" in cells["go6-recipe2"][0]
    assert list(_cells(_env("TextWorld"))) == [""]


class _Graded(TextEnv):
    def __init__(self, cell: Any) -> None:
        super().__init__(TaskSet.from_tasks([Task("a", "A."), Task("b", "B.")]), 5)
        self.cell = cell

    def _start(self, task: Task) -> Outcome:
        return Outcome("")

    def _act(self, action: str) -> Outcome:
        return Outcome("", terminated=True)

    def difficulty(self, task_id: str) -> Any:
        return self.cell


def test_an_environment_of_a_user() -> None:
    assert _cells(_Graded(None)) == {"": ["a", "b"]}
    assert _cells(_Graded("easy")) == {"easy": ["a", "b"]}
    with pytest.raises(
        EnvDefinitionError, match=r"_Graded.*difficulty\('a'\) is 3; expected a str"
    ):
        _cells(_Graded(3))

    def play(task: Task, rng: Any) -> Any:
        yield Outcome("")

    tasks = [Task("a", "A.", "short"), Task("b", "B.", "long")]
    assert _cells(GeneratorEnv(play, tasks)) == {"short": ["a"], "long": ["b"]}
