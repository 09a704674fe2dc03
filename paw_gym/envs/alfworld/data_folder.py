"""The official layout of ALFWorld's data: ``[json_2.1.1/]<split>/<task>/<trial>/game.tw-pddl``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paw_gym.envs.alfworld.errors import DataFolderError
from paw_gym.envs.alfworld.native.game_file import GAME_FILE
from paw_gym.naming import did_you_mean

SPLITS = ("train", "valid_seen", "valid_unseen")
_VERSION_FOLDER = "json_2.1.1"
_DOWNLOAD = "To get the official data: paw data download alfworld"

Stamp = tuple[int, int, int]
"""size in bytes, time of change of the content and of the entry in ns: differs when a file does"""


class Trial(NamedTuple):
    """One trial folder."""

    task_id: str
    stamp: Stamp | None
    """of its game file; None when it has none"""


def find_root(data_dir: str | os.PathLike[str]) -> Path:
    """The folder that holds the splits.

    Raises:
        DataFolderError: when there is none at or below `data_dir`.
    """
    given = Path(data_dir).expanduser()
    if not given.is_dir():
        raise DataFolderError(f"the ALFWorld data folder {given} does not exist. {_DOWNLOAD}")
    for root in (given / _VERSION_FOLDER, given):
        if any((root / split).is_dir() for split in SPLITS):
            return root.resolve()
    hint = f" Did you mean {given.parent}?" if given.name in SPLITS else f" {_DOWNLOAD}"
    raise DataFolderError(
        f"{given} holds none of the folders {', '.join(SPLITS)} (nor {_VERSION_FOLDER}/ with them)."
        f"{hint}"
    )


def left_out_by_name(task: str) -> str | None:
    """Why the original leaves out a task folder of this name, or None."""
    for word in ("movable", "Sliced"):
        if word in task:
            return f"tasks named {word!r} are not supported by ALFWorld's text games"
    return None


def trials(root: Path, split: str) -> Iterator[Trial]:
    """The trial folders of a split, those left out by name aside.

    Raises:
        DataFolderError: when the split is missing.
    """
    folder = root / split
    if not folder.is_dir():
        there = [name for name in SPLITS if (root / name).is_dir()]
        if split in SPLITS:
            what = f"{root} has no {split}/ (there: {', '.join(there) or 'none'})."
        else:
            what = f"ALFWorld has no split {split!r}. {did_you_mean(split, SPLITS)}"
        raise DataFolderError(f"{what} {_DOWNLOAD}")
    for task in _folders(folder):
        if left_out_by_name(task.name) is None:
            for trial in _folders(task.path):
                yield Trial(f"{split}/{task.name}/{trial.name}", _stamp(trial.path))


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted((e for e in entries if e.is_dir()), key=lambda e: e.name)


def _stamp(trial: str) -> Stamp | None:
    try:
        stat = os.stat(f"{trial}{os.sep}{GAME_FILE}")
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
