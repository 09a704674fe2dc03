"""Games for the ALFWorld benchmarks: a given folder, or the archive beside the repository."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent

# A script's own folder comes first in the search path, so alfworld.py would hide the package of
# that name. In last place it hides nothing.
sys.path.sort(key=lambda entry: Path(entry).resolve() == HERE)


@contextlib.contextmanager
def data_folder(data_dir: Path | None) -> Iterator[Path]:
    """The given folder, or the shared archive unpacked into a temporary one.

    Raises:
        SystemExit: if neither exists.
    """
    if data_dir is not None:
        yield data_dir
        return
    shared = Path(os.environ.get("PAW_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    archives = sorted((shared / "alfworld").glob("*.tar.xz"))
    if not archives:
        raise SystemExit(f"no --data-dir given, and no archive in {shared / 'alfworld'}")
    with tempfile.TemporaryDirectory(prefix="alfworld-") as folder:
        for archive in archives:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        yield Path(folder)


@contextlib.contextmanager
def game_files(data_dir: Path | None) -> Iterator[list[Path]]:
    """All game files below the data folder, sorted."""
    with data_folder(data_dir) as folder:
        yield sorted(folder.rglob("game.tw-pddl"))


@functools.cache
def newer_rules() -> tuple[str, str]:
    """Domain and grammar of the installed alfworld package (the newer version of both)."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or spec.origin is None:
        raise SystemExit(
            'the newer grammar is in the original: pip install ".[alfworld]" in your clone of PaW-Gym'
        )
    folder = Path(spec.origin).parent / "data"
    return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()
