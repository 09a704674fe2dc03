"""Games from descriptions: as described, won, and the same in the original engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paw_gym.envs.alfworld.authoring import GameError, author_game, read_description
from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.goal import TASK_TYPES
from paw_gym.envs.alfworld.parity import compare, random_walker, script_walker
from paw_gym.envs.alfworld.procedural.generate import write_game
from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environments" / "alfworld.md"
GOALS = dict(
    zip(
        TASK_TYPES,
        [
            *[("mug", "shelf"), ("pencil", "desklamp"), ("mug", "shelf")],
            *[("apple", "countertop"), ("apple", "countertop"), ("mug", "shelf")],
        ],
        strict=True,
    )
)


def described(task: str = "pick_and_place_simple", **changes: Any) -> dict[str, Any]:
    obj, target = GOALS[task]
    kitchen = {"countertop": 2, "drawer": 12, "fridge": 1, "microwave": 1, "sinkbasin": 1}
    return {
        "receptacles": {**kitchen, "desk": 1, "shelf": 3},
        "objects": {
            "mug": ["desk 1", "countertop 2", "desk 1"],
            "apple": ["fridge 1", "countertop 2"],
            "pencil": ["drawer 11", "drawer 2"],
            "desklamp": "desk 1",
        },
        "goal": {"task": task, "object": obj, "target": target},
        **changes,
    }


def test_the_goals_here_are_of_all_types() -> None:
    assert list(GOALS) == list(TASK_TYPES)


def where_things_lie(game: dict[str, Any]) -> dict[str, str]:
    engine = NativeEngine(CompiledGame.from_json(game))
    engine.reset()
    compiled = engine.game
    return {
        compiled.objects[o]: compiled.receptacles[r]
        for r, inside in enumerate(engine.contents)
        for o in bits(inside)
    }


@pytest.mark.parametrize("task", TASK_TYPES)
def test_a_game_is_as_described(task: str) -> None:
    game = author_game(described(task))
    assert where_things_lie(game) == {
        f"{kind} {number}": spot
        for kind, spots in described()["objects"].items()
        for number, spot in enumerate([spots] if isinstance(spots, str) else spots, start=1)
    }
    engine = NativeEngine(CompiledGame.from_json(game))
    engine.reset()
    assert [engine.step(command)[1] for command in game["walkthrough"]][-1]


@pytest.mark.usefixtures("original_engine")
@pytest.mark.parametrize(("task", "grammar"), [(TASK_TYPES[0], "move"), (TASK_TYPES[3], "put")])
def test_a_game_is_won_in_the_original_engine(task: str, grammar: str) -> None:
    game = author_game(described(task), grammar=grammar)
    native, original = NativeEngine(CompiledGame.from_json(game)), TextWorldEngine(game)
    compare(native, original, random_walker(10, seed=1))
    compare(native, original, script_walker(game["walkthrough"]))
    assert original.won and native.won


def test_a_written_game_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    path = write_game(tmp_path / "games", author_game(described(), split="valid_seen"))
    assert {file.name for file in path.parent.iterdir()} == {"game.tw-pddl", "traj_data.json"}
    kwargs = {"data_dir": tmp_path / "games", "split": "valid_seen"}
    env = gym.make("paw_gym/ALFWorld-v0", **kwargs).unwrapped
    _, info = env.reset(seed=0)
    assert info["instruction"] == "put a mug in shelf." and len(env.tasks) == 1
    for action in env.reference_solution():
        *_, info = env.step(action)
    assert info["success"]


def test_the_description_of_the_page(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "game.yaml").write_text(text, encoding="utf-8")
    game = author_game(read_description(tmp_path / "game.yaml"))
    assert game["task"] == "put a hot apple in countertop."


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"receptacles: {caf\xe9: 1}", "is not UTF-8 text"),
        (b"room: 2020-13-45", "is not valid YAML: month must be"),
        (b"[" * 3000, "is not valid YAML: maximum recursion depth"),
    ],
)
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "game.yaml").write_bytes(raw)
    with pytest.raises(GameError, match=message):
        read_description(tmp_path / "game.yaml")


@given(st.data())
@settings(max_examples=25)
def test_what_is_made_can_be_won(data: st.DataObject) -> None:
    places = ["countertop 1", "countertop 2", "desk 1", "shelf 1", "fridge 1", "drawer 5"]
    spots = st.lists(st.sampled_from(places), min_size=1, max_size=3)
    kinds = ["mug", "apple", "pencil", "desklamp", "spoon"]
    objects = data.draw(st.dictionaries(st.sampled_from(kinds), spots, min_size=1))
    goal = {
        "task": data.draw(st.sampled_from(TASK_TYPES)),
        "object": data.draw(st.sampled_from(kinds)),
        "target": data.draw(st.sampled_from(["shelf", "desk", "desklamp", "fridge"])),
    }
    try:
        game = author_game(described(objects=objects, goal=goal))
    except GameError as error:
        assert "\n" not in str(error)
        return
    engine = NativeEngine(CompiledGame.from_json(json.loads(json.dumps(game))))
    engine.reset()
    for command in game["walkthrough"]:
        assert command in engine.admissible_commands()
        engine.step(command)
    assert engine.won


def goal(task: str, obj: str, target: str) -> dict[str, dict[str, str]]:
    return {"goal": {"task": task, "object": obj, "target": target}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"receptacles": {"draw": 1}}, "receptacles: there is no 'draw'. Did you mean 'drawer'"),
        ({"receptacles": {"desk": 0}}, "receptacles: expected 1 or more"),
        ({"objects": {"mugg": "desk 1"}}, "objects: there is no 'mugg'. Did you mean 'mug'"),
        (
            {"objects": {"mug": "desk 2"}},
            "objects.mug: there is no 'desk 2'. Did you mean 'desk 1'",
        ),
        ({"objects": {"mug": "drawer 1"}}, "no mug lies in a drawer; in cabinet"),
        ({"objects": {"pencil": "desk 1"}}, "the goal needs 1 mug, got 0"),
        ({"objects": {"mug": "shelf 1"}}, "holds from the start"),
        ({"rooms": 3}, "rooms: Extra inputs are not permitted"),
        ({"room": 99}, "there is no room 99"),
        (goal("pick_and_place", "mug", "shelf"), "Did you mean 'pick_and_place_simple'"),
        (goal("pick_and_place_simple", "mug", "bed"), "goal.target: there is no 'bed'"),
        (goal("pick_and_place_simple", "mug", "drawer"), "no mug may be put in a drawer"),
        (goal("pick_heat_then_place_in_recep", "pencil", "desk"), "a pencil cannot be made hot"),
        (goal("look_at_obj_in_light", "mug", "desk"), "Did you mean 'desklamp'"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=re.escape(message)):
        author_game(described(**changes))


def test_a_lamp_and_a_tool_are_needed() -> None:
    objects = {"mug": "desk 1"}
    with pytest.raises(GameError, match="cannot be reached: no desklamp stands in a receptacle"):
        author_game(described(objects=objects, **goal("look_at_obj_in_light", "mug", "desklamp")))
    rooms = {"desk": 1, "shelf": 1}
    with pytest.raises(GameError, match="hot needs a microwave"):
        author_game(
            described(
                receptacles=rooms,
                objects=objects,
                **goal("pick_heat_then_place_in_recep", "mug", "shelf"),
            )
        )


def test_a_file_that_is_no_description(tmp_path: Path) -> None:
    for text, message in (("a: [", "not valid YAML"), ("- 1", "the description: ")):
        (tmp_path / "game.yaml").write_text(text)
        with pytest.raises(GameError, match=message):
            read_description(tmp_path / "game.yaml")
    (tmp_path / "game.yaml").write_text(yaml.safe_dump(described()))
    assert read_description(tmp_path / "game.yaml").receptacles["drawer"] == 12
