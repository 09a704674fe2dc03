"""The index of a data folder: what is found, what is left out and why, and what is noticed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paw_gym.envs.alfworld import games
from paw_gym.envs.alfworld.games import DataFolderError, GameIndex, load_compiled, load_game
from paw_gym.envs.alfworld.native.problem import GameFileError, UnsolvableGameError

TinyGame = Callable[..., dict[str, Any]]

PLAIN = "pick_and_place_simple-Apple-None-Drawer-1"


def put_game(root: Path, task_id: str, data: dict[str, Any]) -> Path:
    path = root / task_id / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_game: TinyGame) -> Path:
    """A data folder with three playable games and one of each kind that is left out."""
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "data" / "json_2.1.1"
    put_game(root, f"train/{PLAIN}/trial_1", tiny_game())
    put_game(root, f"train/{PLAIN}/trial_2", tiny_game("two"))
    put_game(root, f"train/{PLAIN}/unsolvable", {**tiny_game(), "solvable": False})
    unmarked = {key: text for key, text in tiny_game().items() if key != "solvable"}
    put_game(root, f"train/{PLAIN}/unmarked", unmarked)
    (root / f"train/{PLAIN}/nothing").mkdir()
    put_game(root, "train/pick_and_place_with_movable_recep-X-Y-Z-1/trial_1", tiny_game())
    put_game(root, "train/pick_and_place_simple-AppleSliced-None-Drawer-1/trial_1", tiny_game())
    put_game(root, f"valid_seen/{PLAIN}/trial_1", tiny_game())
    return root


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trials whose files are read from now on."""
    read: list[str] = []
    original = games.read_record

    def counted(trial: Path, stamp: games.Stamp) -> games.GameRecord:
        read.append(trial.name)
        return original(trial, stamp)

    monkeypatch.setattr(games, "read_record", counted)
    return read


def test_playable_games_by_id(tiny_game: TinyGame, root: Path) -> None:
    index = GameIndex(root, "train")
    first = f"train/{PLAIN}/trial_1"
    assert list(index.games) == [first, f"train/{PLAIN}/trial_2"]
    assert index.games[first].task_type == "pick_and_place_simple"
    assert index.games[first].instruction == "do as you like."
    assert load_game(index.path(first)) == tiny_game()
    assert GameIndex(root.parent, "train").fingerprint == index.fingerprint


def test_an_unsolvable_game_is_refused_by_its_own_name(root: Path) -> None:
    with pytest.raises(UnsolvableGameError, match="unsolvable"):
        load_compiled(root / f"train/{PLAIN}/unsolvable/game.tw-pddl")


def test_only_added_and_changed_games_are_read(
    tiny_game: TinyGame, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GameIndex(root, "train")
    read = reads(monkeypatch)
    again = GameIndex(root, "train")
    assert not read
    assert (again.games, again.fingerprint) == (first.games, first.fingerprint)
    put_game(root, "train/you-name-it/trial_3", tiny_game("hot"))
    path = root / f"train/{PLAIN}/trial_1/game.tw-pddl"
    path.write_text(path.read_text().replace("do as you like", "do as we like"))  # same size
    shutil.rmtree(root / f"train/{PLAIN}/trial_2")
    after = GameIndex(root, "train")
    assert read == ["trial_1", "trial_3"]
    assert [i.rsplit("/", 1)[1] for i in after.games] == ["trial_1", "trial_3"]
    assert after.games[f"train/{PLAIN}/trial_1"].instruction == "do as we like."
    mine = after.games["train/you-name-it/trial_3"]  # a folder that does not name its type
    assert mine.task_type == "pick_heat_then_place_in_recep"
    assert after.fingerprint != first.fingerprint


def test_the_fingerprint_depends_on_the_games_alone(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(root, copy)
    for file in copy.rglob("game.tw-pddl"):
        file.write_text(json.dumps(json.loads(file.read_text()), indent=2))
        os.utime(file, (0, 0))
    fingerprint = GameIndex(root, "train").fingerprint
    assert GameIndex(copy, "train").fingerprint == fingerprint
    assert GameIndex(root, "valid_seen").fingerprint != fingerprint


@pytest.mark.parametrize("content", ["", "{", '{"version": 1}', "[]", '{"version": 0}'])
def test_a_damaged_cache_is_built_anew(root: Path, tmp_path: Path, content: str) -> None:
    expected = GameIndex(root, "train").fingerprint
    files = list((tmp_path / "cache").rglob("*.json"))
    assert files
    for file in files:
        file.write_text(content)
    assert GameIndex(root, "train").fingerprint == expected


@pytest.mark.parametrize(
    ("folder", "split", "message"),
    [
        ("nowhere", "train", "does not exist.*paw data download alfworld"),
        ("data/json_2.1.1/train", "train", "Did you mean .*json_2.1.1"),
        (".", "train", "none of the folders train.*paw data download alfworld"),
        ("data", "valid_unseen", r"no valid_unseen/ \(there: train, valid_seen\).*download"),
        ("data", "valid_unsene", "Unknown split 'valid_unsene'.*'valid_unseen'"),
    ],
)
def test_missing_folders_are_named(
    root: Path, tmp_path: Path, folder: str, split: str, message: str
) -> None:
    with pytest.raises((DataFolderError, ValueError), match=message):
        GameIndex(tmp_path / folder, split)


def test_a_half_extracted_split_says_so(root: Path) -> None:
    for trial in ("a", "b"):
        (root / "valid_unseen" / PLAIN / trial).mkdir(parents=True)
    with pytest.raises(
        DataFolderError, match=r"2 trial folders .* half-extracted.*paw data download"
    ):
        GameIndex(root, "valid_unseen")


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda game: json.dumps(game)[:-500], "not valid JSON.*truncated"),
        (lambda game: "[]", "holds a JSON list"),
        (lambda game: json.dumps({**game, "grammar": None}), "no text under 'grammar'"),
    ],
)
def test_corrupt_files_are_read_again_once_repaired(
    tiny_game: TinyGame,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    corrupt: Callable[[dict[str, Any]], str],
    message: str,
) -> None:
    path = root / f"train/{PLAIN}/trial_2/game.tw-pddl"
    path.write_text(corrupt(tiny_game()))
    with pytest.raises(GameFileError, match=f"trial_2.*{message}"):
        GameIndex(root, "train")
    with pytest.raises(GameFileError, match=message):
        load_compiled(path)
    path.write_text(json.dumps(tiny_game("two")))
    read = reads(monkeypatch)
    assert len(GameIndex(root, "train").games) == 2
    assert read == ["trial_2"]  # the others were kept although the split could not be used


def test_broken_pddl_names_the_file(tiny_game: TinyGame, root: Path) -> None:
    problem = tiny_game()["pddl_problem"][:-9]
    path = put_game(root, f"train/{PLAIN}/broken", {**tiny_game(), "pddl_problem": problem})
    with pytest.raises(GameFileError, match="still open") as caught:
        load_compiled(path)
    assert str(path) in "".join(caught.value.__notes__)


def test_compiled_games_are_shared_until_the_file_changes(tiny_game: TinyGame, root: Path) -> None:
    path = root / f"train/{PLAIN}/trial_1/game.tw-pddl"
    game = load_compiled(path)
    assert load_compiled(path) is game
    path.write_text(json.dumps(tiny_game("light")))
    assert load_compiled(path).goal.lamp_type == "desklamp"
    with pytest.raises(FileNotFoundError, match="other"):
        load_compiled(path.with_name("other"))
