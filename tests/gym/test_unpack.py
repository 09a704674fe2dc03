"""Archives: bounded, and nothing lands outside the folder, whatever their bytes say."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from files import archive
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paw_gym.data import unpack
from paw_gym.data.fetch import DownloadError
from paw_gym.data.unpack import unpack_zip


def extract(raw: bytes, folder: Path) -> dict[str, tuple[int, str]]:
    (folder / "in").mkdir(exist_ok=True, parents=True)
    (folder / "a.zip").write_bytes(raw)
    return unpack_zip(folder / "a.zip", folder / "in", lambda name, done, total: None)


def test_a_bomb_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = archive({"zeros": bytes(2_000_000)})
    assert extract(raw, tmp_path / "small")["zeros"][0] == 2_000_000  # small enough to be allowed
    monkeypatch.setattr(unpack, "ALWAYS_ALLOWED", 1_000_000)
    with pytest.raises(DownloadError, match="would become 1 files of 2,000,000 bytes, more than"):
        extract(raw, tmp_path)
    assert not any((tmp_path / "in").iterdir())


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_FILES", 3)
    with pytest.raises(DownloadError, match="would become 4 files"):
        extract(archive({str(n): b"x" for n in range(4)}), tmp_path)


def test_a_file_that_says_it_is_small_does_not_grow(tmp_path: Path) -> None:
    """The size in the directory is a lie: no more than that is written, and the archive is refused."""
    raw = bytearray(archive({"zeros": bytes(500_000)}))
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 10)
    with pytest.raises(DownloadError, match="is damaged"):
        extract(bytes(raw), tmp_path)
    assert all(file.stat().st_size <= 10 for file in (tmp_path / "in").iterdir())


def test_the_same_path_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        raw = archive({"a": "1", zipfile.ZipInfo("a"): "2"})
    with pytest.raises(DownloadError, match="holds 'a' twice"):
        extract(raw, tmp_path)


def test_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    raw = bytearray(archive({"a": b"x" * 50}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + offset] |= 1
    with pytest.raises(DownloadError, match="encrypted"):
        extract(bytes(raw), tmp_path)


def test_a_member_without_a_name_is_damage(tmp_path: Path) -> None:
    raw = archive({"q.json": b"1"}).replace(b"q.json", b"\0.json")
    with pytest.raises(DownloadError, match=r"a\.zip is damaged"):
        extract(raw, tmp_path)


@given(st.data())
@settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
def test_changed_bytes_extract_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(archive({"d/a.json": b'{"a": 1}' * 9, "b": b"", "d/c": bytes(200)}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("zip")
    try:
        extract(bytes(raw), folder)
    except (DownloadError, OSError) as error:
        assert str(error)
    assert sorted(path.name for path in folder.iterdir()) == ["a.zip", "in"]
    assert sum(file.stat().st_size for file in folder.rglob("in/**/*") if file.is_file()) < 10_000
