"""Files and folders that appear whole or not at all, and JSONL logs of which a kill may leave half a line."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def file_version(path: Path) -> str:
    """What tells a file from another one, or from itself before a change: its path, size and time."""
    stat = path.stat()
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"


@contextmanager
def new_file(path: Path, shared: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; the file takes its place unless something is raised.

    Args:
        path: the file.
        shared: whether other processes may be writing the same file. Otherwise what a killed process
            left is overwritten by the next one.
    """
    scratch = path.with_name(f"{path.name}{f'.{os.getpid()}' if shared else ''}.part")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(
    folder: Path, is_done: Callable[[Path], bool] = lambda folder: False
) -> Iterator[Path]:
    """A folder beside ``folder`` to fill; it takes its place unless something is raised.

    After a failure nothing stays, nor do parent folders that were not there before.

    Args:
        folder: what was there goes only when the new one stands.
        is_done: whether another process has made the same folder meanwhile: then that one stays.
    """
    absent = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.staging-", dir=folder.parent))
    try:
        staging.chmod(0o755)  # mkdtemp's 0700 would stay with the data
        yield staging
        if not is_done(folder):
            try:
                _swap(staging, folder)
            except OSError:
                if not is_done(folder):
                    raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in absent:
            with suppress(OSError):  # of a folder that holds something, such as the finished one
                parent.rmdir()


def _swap(staging: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(staging, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
    os.rename(folder, old / folder.name)
    try:
        os.rename(staging, folder)
    except OSError:
        os.rename(old / folder.name, folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str, shared: bool = False) -> None:
    """Writes a text file, whole or not at all; ``shared`` as for ``new_file``."""
    with new_file(path, shared) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, shared: bool = False) -> None:
    """Writes a JSON file, whole or not at all; ``shared`` as for ``new_file``."""
    write_text(path, json.dumps(value, indent=2) + "\n", shared)


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one line to a JSONL file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def truncate_jsonl(path: Path, key: str, below: int) -> None:
    """Drops the lines of ``path`` whose ``key`` is ``below`` or more: what a resumed run writes again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)[key] < below:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
            continue  # a line that a kill cut short
    write_text(path, "".join(kept))
