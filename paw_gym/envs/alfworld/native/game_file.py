"""Read ALFWorld game files, and keep compiled games for those who share them."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from paw_gym.envs.alfworld.errors import DataFolderError, GameFileError, UnsolvableGameError
from paw_gym.envs.alfworld.native.compiled import GAME_KEYS, CompiledGame
from paw_gym.files import imposture

GAME_FILE = "game.tw-pddl"
_GAMES_KEPT = 512


def load_game(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a ``game.tw-pddl``.

    Returns:
        Its JSON content: ``pddl_domain``, ``grammar``, ``pddl_problem`` and, in published games,
        ``solvable``.

    Raises:
        DataFolderError: when there is no such file.
        GameFileError: when it is not the JSON of a game.
        UnsolvableGameError: when it says ``solvable: false``.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataFolderError(f"no game file at {path} ({error.strerror})") from error
    data = parse_game(raw, str(path))
    if data.get("solvable") is False:
        raise UnsolvableGameError(f"the game {path} is marked unsolvable; no engine can play it")
    return data


def parse_game(raw: bytes, name: str) -> dict[str, Any]:
    """Decode a game file's bytes and check that the keys of a game are there.

    Raises:
        GameFileError: naming `name` and what is wrong with it.
    """
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
    if not isinstance(data.get("solvable", True), bool):
        raise GameFileError(
            f"{name}: 'solvable' is {data['solvable']!r:.40}; expected true or false"
        )
    return data


def load_compiled(path: str | os.PathLike[str]) -> CompiledGame:
    """The compiled game of a file, shared by everyone in the process who asks for it.

    A bounded cache keeps the 512 games used last; a file that changes on disk is read again.

    Raises:
        DataFolderError, GameFileError, UnsolvableGameError, UnsupportedGameError: see `load_game`
            and `CompiledGame.from_json`; a note on the error names the file.
    """
    try:
        stat = os.stat(path)
    except OSError as error:
        raise DataFolderError(f"no game file at {path} ({error.strerror})") from error
    return _compiled(os.fspath(path), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=_GAMES_KEPT)
def _compiled(path: str, modified_ns: int, size: int) -> CompiledGame:
    try:
        return CompiledGame.from_json(load_game(path))
    except GameFileError as error:
        error.add_note(f"game file: {path}")
        raise
