"""TextWorld: games that depend on their request alone, the cache, and episodes in the original engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("textworld", reason="make test-original")

from paw_gym.envs import textworld
from paw_gym.envs.textworld import TextWorldEnv, checked_settings, game_file, textworld_tasks

pytestmark = pytest.mark.original

COOKING = {
    "kind": "cooking",
    "settings": checked_settings("cooking", {"drop": True})[0],
    "seed": 7,
    "split": "test",
    "goal_only": True,
}


@pytest.fixture(scope="module")
def cooking() -> TextWorldEnv:
    """Ingredients to cut and to cook, two of which cannot be carried with the knife."""
    return TextWorldEnv("cooking", "test", {"drop": True, "recipe": 2, "take": 2}, num_tasks=1)


@pytest.mark.slow
def test_a_game_depends_on_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the hash seed of the process that asks for it."""
    made = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / hash_seed))
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        made.append(game_file(COOKING).with_suffix(".json").read_text())
    assert made[0] == made[1]
    kept = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert kept == ["game.json", "game.json", "game.z8", "game.z8"]


def test_a_game_in_the_cache_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    asked = []

    def make(folder: Path, request: str) -> None:
        asked.append(json.loads(request))
        (folder / "game.z8").touch()

    monkeypatch.setattr(textworld, "_make_in_own_process", make)
    first, other = game_file(COOKING), game_file({**COOKING, "seed": 8})
    assert first.is_file() and first != other and game_file(COOKING) == first
    assert [request["seed"] for request in asked] == [7, 8]


def test_a_game_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    wrong = {**COOKING, "kind": "treasure_hunter", "settings": {"level": 99}}
    with pytest.raises(ValueError, match="could not make the game .*level to be within"):
        game_file(wrong)
    assert list((tmp_path / "textworld").iterdir()) == []


def test_an_episode(cooking: TextWorldEnv) -> None:
    observation, info = cooking.reset(seed=0)
    assert observation.startswith("-= Kitchen =-") and not observation.endswith(">")
    assert "cookbook" in info["instruction"] and "0/" not in observation
    total, actions = 0.0, cooking.reference_solution()
    for action in actions:
        assert action in info["admissible_actions"]
        observation, reward, terminated, _, info = cooking.step(action)
        total += reward
    assert terminated and info["success"] and info["score"] == 1.0
    assert total == pytest.approx(1.0) and "RESTART" not in observation


def test_commands_to_the_interpreter_do_not_reach_it(cooking: TextWorldEnv) -> None:
    cooking.reset(seed=0)
    before = cooking.step("look")[0]
    for command in ("quit", "restart", "undo", "save", "tw-print state", "look. look", "", "É"):
        answer, _, terminated, _, info = cooking.step(command)
        assert answer == "That is no command of this game." and not terminated
        assert not info["action_is_valid"]
    assert cooking.step("look")[0] == before


def test_the_expert_goes_on_from_elsewhere(cooking: TextWorldEnv) -> None:
    """Where TextWorld tracks no winning policy, by its walkthrough."""
    cooking.reset(seed=0)
    cooking.step("look")
    cooking.step("quit")
    for action in cooking.reference_solution():
        *_, info = cooking.step(action)
    assert info["success"]


def test_a_restored_state_is_brought_about_when_it_is_needed(cooking: TextWorldEnv) -> None:
    cooking.reset(seed=0)
    solution = cooking.reference_solution()
    for action in solution[:3]:
        cooking.step(action)
    state = cooking.save_state()
    expected = [cooking.step(action)[0] for action in solution[3:]]
    cooking.restore_state(state)
    assert len(cooking._applied) == len(solution)  # still where it was
    assert [cooking.step(action)[0] for action in solution[3:]] == expected


def test_the_seeds_of_a_split_are_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def file(request: dict[str, object]) -> Path:
        asked.append((str(request["split"]), int(str(request["seed"]))))
        raise LookupError

    monkeypatch.setattr("paw_gym.envs.textworld.game_file", file)
    for split in ("train", "valid", "test"):
        tasks = textworld_tasks("custom", split, (("rooms", 9),), True, 60)
        for task_id in tasks.ids:
            with pytest.raises(LookupError):
                tasks[task_id]
    seeds = {split: {s for of, s in asked if of == split} for split, _ in asked}
    assert {len(found) for found in seeds.values()} == {60}
    assert len(set().union(*seeds.values())) == 180


def test_wrong_arguments_are_named() -> None:
    for kwargs, message in (
        ({"game": "cookin"}, "Unknown game 'cookin'. Did you mean 'cooking'"),
        ({"split": "trian"}, "Unknown split 'trian'"),
        ({"settings": {"levl": 3}}, "Unknown setting of treasure_hunter 'levl'.*'level'"),
        ({"settings": {"level": "3"}}, "settings.level is a whole number or a list of them"),
        ({"instructions": "all"}, "instructions is 'goal' or 'steps', got 'all'"),
    ):
        with pytest.raises(ValueError, match=message):
            TextWorldEnv(**kwargs)  # type: ignore[arg-type]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textworld.util, "find_spec", lambda name: None)
    with pytest.raises(textworld.TextWorldMissingError, match=r"pip install '.\[textworld\]'"):
        TextWorldEnv("custom", "train", {"rooms": 3})
