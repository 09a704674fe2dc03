"""The index entry of each game file, kept between starts."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.cache import private_folder
from paw_gym.envs.alfworld.data_folder import Stamp
from paw_gym.envs.alfworld.errors import GameFileError
from paw_gym.envs.alfworld.native.compiled import game_digest
from paw_gym.envs.alfworld.native.game_file import GAME_FILE, parse_game
from paw_gym.envs.alfworld.native.goal import TASK_TYPES, parse_goal
from paw_gym.envs.alfworld.native.pddl import parse_problem
from paw_gym.envs.alfworld.native.rules import task_text
from paw_gym.files import write_text

_VERSION = 1
_log = logging.getLogger(__name__)


class GameRecord(NamedTuple):
    """The part of a game file that the index needs."""

    stamp: Stamp
    task_type: str
    instruction: str
    digest: str
    left_out: str | None
    """why the game is not playable, or None"""


def read_record(trial: Path, stamp: Stamp) -> GameRecord:
    """Read the game file of a trial folder.

    Raises:
        GameFileError: when the file is corrupt.
    """
    path = trial / GAME_FILE
    data = parse_game(path.read_bytes(), str(path))
    left_out = None
    if "solvable" not in data:
        left_out = "its file does not say whether it is solvable, and the original skips such games"
    elif not data["solvable"]:
        left_out = "its file marks it as unsolvable"
    return GameRecord(
        stamp,
        _task_type(trial, data),
        task_text(data["grammar"]) or "",
        game_digest(data),
        left_out,
    )


def _task_type(trial: Path, data: Mapping[str, Any]) -> str:
    named = trial.parent.name.split("-", 1)[0]
    if named in TASK_TYPES:
        return named
    try:
        return parse_goal(parse_problem(data["pddl_problem"]).goal).task_type
    except GameFileError as error:
        raise GameFileError(f"{trial / GAME_FILE}: {error}") from error


class IndexCache:
    """The remembered records of one split, in a JSON file named after the split's place."""

    def __init__(self, path: Path, folder: Path, records: Mapping[str, GameRecord]) -> None:
        self._path = path
        self._folder = os.fspath(folder)
        self._records = records

    @classmethod
    def load(cls, folder: Path, cache_dir: Path | None = None) -> IndexCache:
        """The kept entries of `folder`; none when there is no cache or it is unreadable."""
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        path = (
            cache_dir / "alfworld" if cache_dir else private_folder("alfworld")
        ) / f"{name}.json"
        try:
            stored = json.loads(path.read_bytes())
            if stored["version"] != _VERSION or stored["folder"] != os.fspath(folder):
                return cls(path, folder, {})
            rows = stored["records"].items()
            records = {i: GameRecord((r[0], r[1], r[2]), *r[3:]) for i, r in rows}
        except FileNotFoundError:
            return cls(path, folder, {})
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            _log.warning("Unreadable game index %s (%s): building it anew.", path, error)
            return cls(path, folder, {})
        return cls(path, folder, records)

    def get(self, task_id: str, stamp: Stamp) -> GameRecord | None:
        """The record of a game if its file still has this stamp."""
        record = self._records.get(task_id)
        return record if record is not None and record.stamp == stamp else None

    def save(self, records: Mapping[str, GameRecord]) -> None:
        """Remember these records instead; a folder that cannot be written to is only logged."""
        if records == self._records:
            return
        stored = {
            "version": _VERSION,
            "folder": self._folder,
            "records": {i: [*record.stamp, *record[1:]] for i, record in records.items()},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, json.dumps(stored), shared=True)
        except OSError as error:
            _log.warning("Cannot save the game index %s: %s", self._path, error)
