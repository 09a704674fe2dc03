"""TextWorld: games that depend on their request alone, the cache, and episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playing import play

pytest.importorskip("textworld", reason="make test-original")

from paw_gym.envs import textworld
from paw_gym.envs.textworld import TextWorldEnv, checked_settings, game_file

pytestmark = pytest.mark.original

COOKING = {
    "kind": "cooking",
    "settings": checked_settings("cooking", {"drop": True}),
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
    answers = play(cooking, cooking.reference_solution())
    assert all(answer[4]["action_is_valid"] for answer in answers)
    observation, _, terminated, _, info = answers[-1]
    assert terminated and info["success"] and info["score"] == 1.0
    assert sum(answer[1] for answer in answers) == pytest.approx(1.0)
    assert "RESTART" not in observation


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
    play(cooking, ["look", "quit"])
    assert play(cooking, cooking.reference_solution())[-1][4]["success"]
