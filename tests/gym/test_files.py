"""Folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from paw_gym.files import new_folder


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
