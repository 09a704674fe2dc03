"""Locks that keep a folder to one process and end with the process that holds them."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paw_gym import locks
from paw_gym.locks import ProcessLock, is_held, only_process, require_idle

pytest.importorskip("fcntl", reason="elsewhere nothing is protected")

HOLDS = """
import sys, time
from pathlib import Path
from paw_gym.locks import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A folder, and the process that holds it."""
    folder = tmp_path / "deep" / "run"
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield folder, process
        process.kill()


def test_another_process_is_refused_until_the_first_is_gone(
    held: tuple[Path, subprocess.Popen[str]],
) -> None:
    folder, process = held
    assert is_held(folder)
    with pytest.raises(ValueError, match=r"Another process is working in .*run\. Wait"):
        require_idle(folder)
    refused = pytest.raises(ValueError, match=r"Another process is working in .*run\. Wait")
    with refused, only_process(folder):
        pytest.fail("two processes have it")
    assert folder.is_dir()
    process.kill()
    process.wait()
    assert not is_held(folder)
    require_idle(folder)
    with only_process(folder):
        assert is_held(folder)
    assert not is_held(folder)


def test_a_folder_that_stayed_empty_goes_and_a_filled_one_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), only_process(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with only_process(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "file").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]
    with only_process(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_dir()


def test_a_child_that_inherits_a_lock_holds_it_without_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "deep" / "one"
    lock = ProcessLock(path)
    assert path.is_file() and not path.stat().st_mode & 0o111 and not is_held(path)
    assert lock.take() is True and is_held(path) is True
    second = ProcessLock(path)
    assert second.take() is False
    second.close()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=lock.descriptors,
    )
    with child:
        lock.close()
        assert is_held(path)
        child.kill()
    assert not is_held(path)
    assert is_held(tmp_path / "nothing") is False and not (tmp_path / "nothing").exists()


def test_without_locks_a_run_is_better_than_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks on this file system")

    lock = ProcessLock(tmp_path)
    monkeypatch.setattr(locks._fcntl, "flock", none_here)
    assert lock.take() is True
    monkeypatch.setattr(locks, "_fcntl", None)
    assert lock.take() is True and lock.descriptors == ()
    lock.close()
