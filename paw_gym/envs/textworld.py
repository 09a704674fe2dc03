"""TextWorld as an environment: generated games in the original engine.

The generators iterate over sets, so a game depends on Python's hash seed: each is made in its own process,
in which that seed is fixed (``python -m paw_gym.envs.textworld FOLDER REQUEST``), and kept in the cache by a
hash of what it was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet
from paw_gym.generated import sampled_tasks, shared_sets
from paw_gym.internals.constructors import not_installed
from paw_gym.internals.files import new_folder, private_folder
from paw_gym.internals.naming import require_choice
from paw_gym.replayed import ReplayedEnv

DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "coin_collector": {"level": 5},
    "treasure_hunter": {"level": 5},
    "cooking": {"recipe": 1, "take": 1, "go": 1, "open": 0, "cook": 1, "cut": 1, "drop": 0},
    "custom": {"rooms": 5, "objects": 8, "quest_length": 4},
}
"""by kind of game, its settings: those of TextWorld's challenges (``tw-make tw-cooking --help``), or the
sizes of a game that is not one of them"""


def version() -> str:
    """The version of TextWorld, which is part of what games are made from."""
    if util.find_spec("textworld") is None:  # an import takes seconds
        raise not_installed("textworld", "textworld", "paw_gym/TextWorld-v0")
    return metadata.version("textworld")


def checked_settings(kind: str, settings: Mapping[str, int]) -> dict[str, int]:
    """The settings of a kind of game, with the defaults of those that are not given."""
    require_choice("game", kind, DEFAULTS)
    for name, value in settings.items():
        require_choice(f"setting of {kind}", name, DEFAULTS[kind])
        if not isinstance(value, int):
            raise ValueError(f"settings.{name} is a whole number, got {value!r}.")
    return {**DEFAULTS[kind], **{name: int(value) for name, value in settings.items()}}


def game_file(request: Mapping[str, Any]) -> Path:
    """The compiled game (``.z8``, with its ``.json`` beside it) of a request, kept in the cache."""
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
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.getenv("PYTHONPATH")]))
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


GENERATOR = 1
"""raised when other games come from the same arguments"""
TASKS = {"train": 1_000, "valid": 200, "test": 200}
"""games of each split; each takes a second or more to make, once, and half a megabyte of the cache"""
_COMMAND = re.compile(r"[a-z][A-Za-z0-9' -]{0,79}")
_STATUS = re.compile(r"\s*>?\s*-= [^=\n]* =-\s*-?\d+/\d+\s*$")
"""the interpreter's status line, after the text"""
_END = re.compile(r"\s*Would you like to RESTART.*", re.DOTALL)


@shared_sets(maxsize=64)
def textworld_tasks(
    kind: str, split: str, settings: tuple[tuple[str, int], ...], goal_only: bool, count: int | None
) -> TaskSet:
    """The games of a split, each made when it is asked for; ``data`` of a task is the game's file."""
    chosen = ",".join(f"{name}={value}" for name, value in settings)
    form = "goal" if goal_only else "steps"
    family = f"textworld{GENERATOR}-{version()}/{kind}/{chosen}/{form}"

    def make(task_id: str, seed: int) -> Task:
        request = {"kind": kind, "settings": dict(settings), "goal_only": goal_only}
        file = game_file({**request, "seed": seed, "split": split})
        game = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        return Task(task_id, game["objective"], kind, str(file))

    count = TASKS.get(split) if count is None else count
    return sampled_tasks(family, split, lambda rng: rng.getrandbits(31), str, make, count)


class TextWorldEnv(ReplayedEnv):
    """Text adventures that are generated by seed: coins, treasures and meals behind doors and in containers.

    ## Description
    Games of TextWorld (Côté et al. 2018) in the original engine, generated and compiled on this machine:
    its challenges ``coin_collector``, ``treasure_hunter`` and ``cooking``, and ``custom`` games of any size.
    Partly hidden: the agent sees the room it is in. Needs the extra ``textworld``; nothing to download.

    ## Action Space
    Commands such as ``go north``, ``open fridge``, ``take carrot from fridge``.
    ``info["admissible_actions"]`` lists those that make sense now. Another command that begins with one of
    the game's verbs also goes to the game, but is invalid; any other text is invalid and does not.

    ## Observation Space
    The text of the game.

    ## Rewards
    The points that the action earned, divided by those of the game: 1 in all. ``info["score"]`` is the share
    of points earned. Behind ``AgentInterface``: 10 on success, -0.1 for an invalid response.

    ## Starting State
    ``seed`` or ``options`` choose the task, which is a game. The objective is in ``info["instruction"]``.

    ## Episode End
    Terminated when the game is won or lost (a burnt ingredient); truncated after ``max_steps`` (50).

    ## Arguments
    ``game``: ``coin_collector``, ``treasure_hunter``, ``cooking`` or ``custom``. ``settings``: of that kind
    of game, such as ``{"level": 15}`` or ``{"recipe": 3, "go": 9}``. ``split``: ``train``, ``valid`` or
    ``test``, disjoint by the generator's seeds, and in cooking by foods and their preparations.
    ``instructions``: ``goal`` names the last step alone, ``steps`` describes the way if the game does so.
    ``num_tasks``: size of the split.
    """

    agent = AgentDefaults(template="generic", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        game: str = "treasure_hunter",
        split: str = "train",
        settings: Mapping[str, int] | None = None,
        instructions: str = "goal",
        max_steps: int = 50,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_choice("instructions", instructions, ("goal", "steps"))
        chosen = tuple(sorted(checked_settings(game, settings or {}).items()))
        tasks = textworld_tasks(game, split, chosen, instructions == "goal", num_tasks)
        super().__init__(tasks, max_steps, render_mode)
        self._engine: Any = None
        self._file = ""
        self._now: Any = None

    def _open(self, task: Task, seed: int) -> Outcome:
        if self._file != task.data:
            self.close()
            self._engine, self._file = _engine(task.data), task.data
        self._now = self._engine.reset()
        _, sign, room = self._now.feedback.partition("\n-= ")
        return self._outcome(f"{sign}{room}", points=0)

    def _apply(self, action: str) -> Outcome:
        valid = action in self._now.admissible_commands
        # not what speaks to the interpreter (quit, undo, save)
        if action.partition(" ")[0] not in self._now.verbs or not _COMMAND.fullmatch(action):
            return self._outcome("That is no command of this game.", points=0, valid=False)
        before = self._now.score
        self._now, _, _ = self._engine.step(action)
        return self._outcome(self._now.feedback, self._now.score - before, valid)

    def _outcome(self, text: str, points: int, valid: bool = True) -> Outcome:
        now, over = self._now, bool(self._now.won or self._now.lost)
        text = re.sub(r"\n{3,}", "\n\n", _END.sub("", _STATUS.sub("", text))).strip()
        return Outcome(
            text,
            reward=points / now.max_score,
            terminated=over,
            success=bool(now.won),
            score=max(0, now.score) / now.max_score,
            action_is_valid=valid,
            admissible_actions=[] if over else now.admissible_commands,
        )

    def reference_solution(self) -> list[str]:
        """TextWorld's winning policy from here; if it tracks none, what remains of its walkthrough."""
        self.catch_up()
        if self._now.won or self._now.lost:
            return []
        if self._now.policy_commands:
            return list(self._now.policy_commands)
        return self.remaining_of(list(self._now["extra.walkthrough"]))

    def close(self) -> None:
        """Ends the engine's game."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._file, self._opened = None, "", None


def _engine(file: str) -> Any:
    import textworld

    infos = textworld.EnvInfos(
        admissible_commands=True,
        policy_commands=True,
        verbs=True,
        won=True,
        lost=True,
        score=True,
        max_score=True,
        extras=["walkthrough"],
    )
    with warnings.catch_warnings():
        # it is not news that the interpreter does not know a game that was generated here
        warnings.simplefilter("ignore")
        return textworld.start(file, infos)


if __name__ == "__main__":
    make(Path(sys.argv[1]), json.loads(sys.argv[2]))
