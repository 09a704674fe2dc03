"""Folders that appear whole or not at all; files that are not what their names say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paw_gym.files import (
    append_jsonl,
    naming_full_disk,
    new_folder,
    open_text,
    require_data,
    write_json,
)


def _fill(folder: Path, text: str, fails: bool = False) -> None:
    with new_folder(folder) as staging:
        (staging / "a.txt").write_text(text, encoding="utf-8")
        if fails:
            raise RuntimeError("in the middle")


def test_after_a_failure_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="in the middle"):
        _fill(tmp_path / "deep" / "down" / "data", "new", fails=True)
    assert list(tmp_path.iterdir()) == []


def test_after_a_failure_what_was_there_stays(tmp_path: Path) -> None:
    _fill(tmp_path / "deep" / "data", "old")
    with pytest.raises(RuntimeError, match="in the middle"):
        _fill(tmp_path / "deep" / "data", "new", fails=True)
    with pytest.raises(RuntimeError, match="in the middle"):
        _fill(tmp_path / "deep" / "other" / "data", "new", fails=True)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["deep", "deep/data", "deep/data/a.txt"]
    assert (tmp_path / "deep" / "data" / "a.txt").read_text(encoding="utf-8") == "old"


def test_the_new_one_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("old", "new"):
        _fill(Path("deep", "data"), text)
        assert Path("deep", "data", "a.txt").read_text(encoding="utf-8") == text
        assert [path.name for path in Path("deep").iterdir()] == ["data"]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    value = {"a": [1.5, float("nan"), {"b": float("inf")}], "c": (float("-inf"), "Infinity")}
    expected = {"a": [1.5, None, {"b": None}], "c": [None, "Infinity"]}
    write_json(tmp_path / "a.json", value)
    append_jsonl(tmp_path / "a.jsonl", value)
    append_jsonl(tmp_path / "a.jsonl", {"whole": True})
    assert json.loads((tmp_path / "a.json").read_text()) == expected
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [expected, {"whole": True}]


def _json_to(device: Path) -> None:
    append_jsonl(device, {"a": 1})


def _tensors_to(device: Path) -> None:
    torch = pytest.importorskip("torch")
    with device.open("wb") as file:
        torch.save(torch.zeros(10_000), file)


def _as_safetensors_says(device: Path) -> None:
    raise RuntimeError("I/O error: No space left on device (os error 28)")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize("write", [_json_to, _tensors_to, _as_safetensors_says])
def test_a_full_disk_is_one_sentence_whoever_finds_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with (
        pytest.raises(OSError, match=rf"No space left at {tmp_path}: free some"),
        naming_full_disk(tmp_path),
    ):
        write(Path("/dev/full"))


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"), naming_full_disk(tmp_path):
        (tmp_path / "nothing").read_text()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


def _question(path: Path) -> None:
    from paw_gym.envs.search_qa.questions import read_questions

    read_questions(path)


def _corpus(path: Path) -> None:
    from paw_gym.retrieval.corpus import Corpus

    Corpus.open(path)


def _shop(path: Path) -> None:
    from paw_gym.envs.webshop.data_folder import read_json

    read_json(path)


def _game(path: Path) -> None:
    from paw_gym.envs.alfworld.games import load_game

    load_game(path)


@pytest.mark.parametrize("read", [require_data, _question, _corpus, _shop, _game])
@pytest.mark.parametrize(
    ("content", "says"), [(POINTER, "is a Git LFS pointer.*git lfs pull"), (PAGE, "is a web page")]
)
def test_what_stands_in_place_of_the_data_is_named(
    tmp_path: Path, read: Callable[[Path], object], content: bytes, says: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"data.jsonl {says}"):
        read(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04....", b"BZh9...."])
def test_an_archive_under_the_name_of_a_text_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data.jsonl is .*: unpack it"):
        open_text(path)
