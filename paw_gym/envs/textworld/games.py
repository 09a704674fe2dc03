"""Games made by TextWorld's generators, kept in the cache by a hash of what they were made from.

The generators iterate over sets, so a game depends on Python's hash seed: each is made in a process of its
own in which that is fixed (``python -m paw_gym.envs.textworld.games FOLDER REQUEST``).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from itertools import product
from pathlib import Path
from typing import Any

from paw_gym.cache import private_folder
from paw_gym.files import new_folder
from paw_gym.generated import values_of
from paw_gym.naming import require_choice

INSTALL = "pip install '.[textworld]' in your clone of PaW-Gym"
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "coin_collector": {"level": 5},
    "treasure_hunter": {"level": 5},
    "cooking": {"recipe": 1, "take": 1, "go": 1, "open": 0, "cook": 1, "cut": 1, "drop": 0},
    "custom": {"rooms": 5, "objects": 8, "quest_length": 4},
}
"""by kind of game, its settings: those of TextWorld's challenges (``tw-make tw-cooking --help``), or the
sizes of a game that is no challenge"""


class TextWorldMissingError(ImportError):
    """TextWorld is not installed."""


def version() -> str:
    """The version of TextWorld, which is part of what games are made from.

    Raises:
        TextWorldMissingError: it is not installed.
    """
    if util.find_spec("textworld") is None:
        raise TextWorldMissingError(
            f"paw_gym/TextWorld-v0 needs the package textworld, which is not installed: {INSTALL}"
        )
    return metadata.version("textworld")


def checked_settings(
    kind: str, settings: Mapping[str, int | Sequence[int]]
) -> list[dict[str, int]]:
    """The settings of a kind of game, with the defaults of those that are not given.

    Returns:
        One for each combination of the values that are lists.

    Raises:
        ValueError: an unknown kind or setting; names the nearest.
    """
    require_choice("game", kind, DEFAULTS)
    for name in settings:
        require_choice(f"setting of {kind}", name, DEFAULTS[kind])
    given = {**DEFAULTS[kind], **settings}
    values = [values_of(f"settings.{name}", value) for name, value in given.items()]
    return [dict(zip(given, map(int, one), strict=True)) for one in product(*values)]


def game_file(request: Mapping[str, Any]) -> Path:
    """The compiled game (``.z8``, with its ``.json`` beside it) of a request, made unless it is in the cache.

    Args:
        request: ``kind``, ``settings``, ``seed``, ``split`` (whose foods a cooking game uses) and
            ``goal_only`` (whether the objective names the last step alone).

    Raises:
        ValueError: TextWorld cannot make such a game; gives its reason.
        TextWorldMissingError: it is not installed.
    """
    text = json.dumps({**request, "textworld": version()}, sort_keys=True)
    folder = private_folder("textworld") / hashlib.sha256(text.encode()).hexdigest()[:32]
    file = folder / "game.z8"
    if not file.exists():
        with new_folder(folder, is_done=lambda made: (made / "game.z8").exists()) as staging:
            _make_in_own_process(staging, text)
    return file


def _make_in_own_process(folder: Path, request: str) -> None:
    command = [sys.executable, "-P", "-m", __spec__.name, str(folder), request]
    # the package's own folder, wherever this process found it
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.getenv("PYTHONPATH")]))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise ValueError(f"TextWorld could not make the game {request}: {reason}")


def make(folder: Path, request: Mapping[str, Any]) -> None:
    """Generates and compiles a game into a folder, as ``game.z8`` and ``game.json``."""
    from textworld.generator import compile_game, make_game
    from textworld.generator.game import GameOptions

    options, settings = GameOptions(), dict(request["settings"])
    options.seeds = request["seed"]
    options.grammar.only_last_action = request["goal_only"]
    options.path = str(folder / "game.z8")
    if request["kind"] == "custom":
        options.nb_rooms, options.nb_objects = settings["rooms"], settings["objects"]
        options.quest_length = settings["quest_length"]
        game = make_game(options)
    else:
        from textworld.challenges import CHALLENGES

        if request["kind"] == "cooking":
            settings |= {"split": request["split"], "recipe_seed": request["seed"]}
        game = CHALLENGES[f"tw-{request['kind']}"][1](settings, options)
    compile_game(game, options)
    (folder / "game.ni").unlink()  # the source, which nothing reads again


if __name__ == "__main__":
    make(Path(sys.argv[1]), json.loads(sys.argv[2]))
