"""ALFWorld's data on disk: ``[json_2.1.1/]<split>/<task>/<trial>/game.tw-pddl``, and an index of its games.

The original reads every file at every start (half a minute on the full data). Here a file is read
once and remembered with its size and times; a start looks at the folders and the files' times only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.envs.alfworld.native.compiled import GAME_KEYS, CompiledGame, game_digest
from paw_gym.envs.alfworld.native.problem import (
    TASK_TYPES,
    GameFileError,
    UnsolvableGameError,
    parse_goal,
    parse_problem,
)
from paw_gym.envs.alfworld.native.rules import task_text
from paw_gym.internals.files import file_version, imposture, private_folder, user_path, write_text
from paw_gym.internals.naming import require_choice

GAME_FILE = "game.tw-pddl"
SPLITS = ("train", "valid_seen", "valid_unseen")
_VERSION_FOLDER = "json_2.1.1"
_DOWNLOAD = "To get the official data: paw data download alfworld"
_GAMES_KEPT = 512
_CACHE_VERSION = 3
_UNSUPPORTED = ("movable", "Sliced")
"""words in the names of tasks that the text games do not have"""
_log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""size in bytes, time of change of the content and of the entry in ns: differs when a file does"""


class DataFolderError(FileNotFoundError):
    """The data folder is missing or half-extracted."""


# --- game files --------------------------------------------------------------------------------------


def load_game(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON content of a game file."""
    data = parse_game(Path(path).read_bytes(), str(path))
    if data.get("solvable") is False:
        raise UnsolvableGameError(f"the game {path} is marked unsolvable; no engine can play it")
    return data


def parse_game(raw: bytes, name: str) -> dict[str, Any]:
    """Decodes a game file's bytes and checks that the keys of a game are there."""
    try:
        data = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        if instead := imposture(raw):
            raise GameFileError(f"{name} {instead}") from error
        raise GameFileError(
            f"{name} is not valid JSON ({error}); the file is truncated or corrupt: "
            "extract or download it again (paw data download alfworld)"
        ) from error
    if not isinstance(data, dict):
        raise GameFileError(f"{name} holds a JSON {type(data).__name__}, expected an object")
    missing = [key for key in GAME_KEYS if not isinstance(data.get(key), str)]
    if missing:
        raise GameFileError(
            f"{name} has no text under {', '.join(map(repr, missing))}; expected a game file with "
            f"the keys {', '.join(map(repr, GAME_KEYS))}"
        )
    return data


def load_compiled(path: Path) -> CompiledGame:
    """The compiled game of a file, shared in the process; a file that changes on disk is read again."""
    return _compiled(path, file_version(path))


@functools.lru_cache(maxsize=_GAMES_KEPT)
def _compiled(path: Path, version: str) -> CompiledGame:
    try:
        return CompiledGame.from_json(load_game(path))
    except GameFileError as error:
        error.add_note(f"game file: {path}")
        raise


# --- the data folder ---------------------------------------------------------------------------------


def find_root(data_dir: str | os.PathLike[str]) -> Path:
    """The folder that holds the splits."""
    given = user_path(data_dir)
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


def _trials(root: Path, split: str) -> Iterator[tuple[str, Stamp | None]]:
    """Id of each trial folder of a split, and the stamp of its game file (``None``: it has none)."""
    for task in _folders(root / split):
        if not any(word in task.name for word in _UNSUPPORTED):
            for trial in _folders(task.path):
                yield f"{split}/{task.name}/{trial.name}", _stamp(trial.path)


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted((e for e in entries if e.is_dir()), key=lambda e: e.name)


def _stamp(trial: str) -> Stamp | None:
    try:
        stat = os.stat(f"{trial}{os.sep}{GAME_FILE}")
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


# --- the index ---------------------------------------------------------------------------------------


class GameRecord(NamedTuple):
    """The part of a game file that the index needs."""

    stamp: Stamp
    task_type: str
    """one of ``problem.TASK_TYPES``"""
    instruction: str
    """the text after "Your task is to: " """
    digest: str
    """of domain, grammar and problem (``compiled.game_digest``)"""
    solvable: bool
    """as its file says; the original skips games that do not say so"""


def read_record(trial: Path, stamp: Stamp) -> GameRecord:
    """Reads the game file of a trial folder."""
    path = trial / GAME_FILE
    data = parse_game(path.read_bytes(), str(path))
    task_type = trial.parent.name.split("-", 1)[0]
    if task_type not in TASK_TYPES:
        try:
            task_type = parse_goal(parse_problem(data["pddl_problem"]).goal).task_type
        except GameFileError as error:
            raise GameFileError(f"{path}: {error}") from error
    instruction = task_text(data["grammar"]) or ""
    return GameRecord(stamp, task_type, instruction, game_digest(data), bool(data.get("solvable")))


class GameIndex:
    """The playable games of a split, in the order of their ids (``train/<task>/<trial>``). Left out, as in
    the original: "movable" and "Sliced" tasks, trials without a game file, games not marked solvable."""

    def __init__(self, data_dir: str | Path, split: str) -> None:
        require_choice("split", split, SPLITS)
        self.root = find_root(data_dir)
        found = _records(self.root, split)
        self.games = {i: found[i] for i in sorted(found) if found[i].solvable}
        digest = hashlib.sha256()
        for task_id, record in self.games.items():
            digest.update(f"{task_id}\0{record.digest}\n".encode())
        self.fingerprint = digest.hexdigest()
        """sha256 over ids and games; machine and path play no part"""

    def path(self, task_id: str) -> Path:
        return self.root / task_id / GAME_FILE


def shared_index(data_dir: str | Path, split: str) -> GameIndex:
    """One index for all environments of a process; made anew when a task folder comes or goes."""
    root = find_root(data_dir)
    folder = root / split
    return _index(root, split, file_version(folder) if folder.is_dir() else "")


@functools.lru_cache(maxsize=8)
def _index(root: Path, split: str, version: str) -> GameIndex:
    return GameIndex(root, split)


def _records(root: Path, split: str) -> dict[str, GameRecord]:
    """The records of a split's games; files that did not change since last time are not read."""
    folder = root / split
    if not folder.is_dir():
        there = ", ".join(name for name in SPLITS if (root / name).is_dir())
        raise DataFolderError(f"{root} has no {split}/ (there: {there}). {_DOWNLOAD}")
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    cache = private_folder("alfworld") / f"{name}-{_CACHE_VERSION}.json"
    known = _remembered(cache)
    records: dict[str, GameRecord] = {}
    corrupt: list[str] = []
    found = list(_trials(root, split))
    for task_id, stamp in found:
        if stamp is None:
            continue
        record = known.get(task_id)
        try:
            if record is None or record.stamp != stamp:
                record = read_record(root / task_id, stamp)
            records[task_id] = record
        except GameFileError as error:
            corrupt.append(str(error))
    # before any complaint, so that after a repair only the repaired files are read
    if records != known:
        try:
            write_text(cache, json.dumps(records), shared=True)
        except OSError as error:
            _log.warning("Cannot save the game index %s: %s", cache, error)
    if corrupt:
        more = f" (and {len(corrupt) - 1} more files)" if len(corrupt) > 1 else ""
        raise GameFileError(f"{corrupt[0]}{more}")
    if not records:
        raise DataFolderError(
            f"{folder} holds {len(found)} trial folders and no {GAME_FILE} in any of them: it is "
            "half-extracted (the games come in an archive of their own). Extract the rest, or run: "
            "paw data download alfworld"
        )
    return records


def _remembered(cache: Path) -> dict[str, GameRecord]:
    try:
        stored = json.loads(cache.read_bytes()).items()
        return {task_id: GameRecord(tuple(stamp), *rest) for task_id, (stamp, *rest) in stored}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _log.warning("Unreadable game index %s (%s): building it anew.", cache, error)
        return {}
