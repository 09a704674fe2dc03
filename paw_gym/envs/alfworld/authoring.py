"""ALFWorld games by hand: from a description of a room and a goal to a game file that was won."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.goal import TASK_TYPES
from paw_gym.envs.alfworld.procedural.generate import SPLITS, game_json
from paw_gym.envs.alfworld.procedural.placement import CAN_BE_TAKEN, SCENERY, accepting_types
from paw_gym.envs.alfworld.procedural.plan import NoPlanError
from paw_gym.envs.alfworld.procedural.rooms import facts, rooms
from paw_gym.envs.alfworld.procedural.scene import Receptacle, Scene, SceneGoal, Thing, entity_id
from paw_gym.envs.alfworld.procedural.tasks import LAMP, TOOLS
from paw_gym.naming import did_you_mean

_MOST = 99
"""receptacles, and objects of a type, of one game"""


class GameError(ValueError):
    """A description from which no game can be made; the message says what is wrong and what would do."""


class GoalDescription(BaseModel):
    """What is to be done."""

    model_config = ConfigDict(extra="forbid")

    task: str
    """one of ALFRED's six task types, such as ``pick_heat_then_place_in_recep``"""
    object: str
    """type of the object, such as ``mug``"""
    target: str = LAMP.lower()
    """type of the receptacle that it belongs in; of ``look_at_obj_in_light``: the lamp"""


class GameDescription(BaseModel):
    """A room with what is in it, and a goal; names as the game shows them, such as ``countertop``."""

    model_config = ConfigDict(extra="forbid")

    receptacles: dict[str, int] = Field(min_length=1)
    """how many of each type: ``drawer: 2`` makes ``drawer 1`` and ``drawer 2``"""
    objects: dict[str, str | list[str]] = Field(min_length=1)
    """by type, the receptacle that each lies in: ``mug: [desk 1, shelf 2]`` makes ``mug 1`` and ``mug 2``"""
    goal: GoalDescription
    room: int = 1
    """number of the AI2-THOR room that the files are named after; no text shows it"""


def read_description(path: str | Path) -> GameDescription:
    """A description from a YAML file.

    Raises:
        GameError: there is no such file, or it is not a description.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GameError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise GameError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # a ValueError: a date without such a day; a RecursionError: brackets without end
        raise GameError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return parse_description(data)


def parse_description(data: Any) -> GameDescription:
    """A description from what a YAML or JSON file holds.

    Raises:
        GameError: a field is missing, unknown or of a wrong type.
    """
    try:
        return GameDescription.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the description"
        raise GameError(f"{where}: {first['msg']}.") from error


def author_game(
    description: GameDescription | Mapping[str, Any],
    split: str = "train",
    grammar: str = "put",
) -> dict[str, Any]:
    """The game of a description, as ``generate_game`` gives one; ``write_game`` stores it.

    It was won in the native engine by the walkthrough that it holds.

    Args:
        description: the room and the goal.
        split: of the folder that it is written to.
        grammar: ``put`` (as in the official games) or ``move`` (as in ``alfworld`` 0.4).

    Raises:
        GameError: an unknown type, an object where it cannot lie, or a goal that cannot be reached.
    """
    if not isinstance(description, GameDescription):
        description = parse_description(description)
    _require("split", split, SPLITS)
    _require("grammar", grammar, ("put", "move"))
    scene = _scene(description)
    try:
        game = game_json(scene, grammar, {"split": split, "seed": 0, "variation": "authored"})
    except NoPlanError as error:
        raise GameError(f"The goal cannot be reached: {error}.") from error
    engine = NativeEngine(CompiledGame.from_json(game))
    if engine.won:
        raise GameError("The goal holds from the start: there is nothing to do.")
    answers = [engine.step(command) for command in game["walkthrough"]]
    if not (answers and answers[-1][1]):
        raise GameError(f"The plan does not reach the goal: {', '.join(game['walkthrough'])}.")
    return game


def _scene(description: GameDescription) -> Scene:
    if description.room not in rooms():
        raise GameError(f"room: there is no room {description.room}; ALFRED's are 1 to 430.")
    places = _receptacles(description.receptacles)
    goal = _goal(description.goal, {place.type for place in places.values()})
    things = tuple(_things(description.objects, places))
    _check_enough(goal, things)
    start = (len(places), 1, 0, 30)  # away from every receptacle, as in the official games
    return Scene(description.room, tuple(places.values()), things, start, goal)


def _receptacles(wanted: Mapping[str, int]) -> dict[str, Receptacle]:
    """The receptacles by the name that the game will show."""
    found: dict[str, Receptacle] = {}
    known = {kind.lower(): kind for kind in facts().can_contain}
    if not all(number >= 1 for number in wanted.values()) or sum(wanted.values()) > _MOST:
        raise GameError(f"receptacles: expected 1 or more of each type and at most {_MOST} in all.")
    cells = count()
    for name, number in wanted.items():
        kind = known[_require("receptacles", name, known)]
        for copy in range(1, number + 1):
            spot = entity_id(kind, _position(copy))
            cell = (next(cells), 0, 0, 30)
            found[f"{name} {copy}"] = Receptacle(spot, kind, cell, kind in facts().openable)
    return found


def _things(wanted: Mapping[str, str | list[str]], places: Mapping[str, Receptacle]) -> list[Thing]:
    known = {kind.lower(): kind for kind in facts().pickupable | CAN_BE_TAKEN | SCENERY.keys()}
    index = {name: number for number, name in enumerate(places)}
    things = []
    for name, spots in wanted.items():
        kind = known[_require("objects", name, known)]
        listed = [spots] if isinstance(spots, str) else spots
        if len(listed) > _MOST:
            raise GameError(f"objects.{name}: expected at most {_MOST}, got {len(listed)}.")
        for copy, spot in enumerate(listed, start=1):
            _require(f"objects.{name}", spot, index)
            place = places[spot].type
            if place not in accepting_types(kind):
                others = ", ".join(sorted(kind.lower() for kind in accepting_types(kind)))
                raise GameError(
                    f"objects.{name}: no {name} lies in a {place.lower()}; in {others}."
                )
            cool = place == "Fridge" and kind in facts().affordances["coolable"]
            things.append(Thing(entity_id(kind, _position(copy)), kind, index[spot], cool))
    return things


def _goal(wanted: GoalDescription, places: set[str]) -> SceneGoal:
    task = _require("goal.task", wanted.task, TASK_TYPES)
    look = task == "look_at_obj_in_light"
    kinds = {kind.lower(): kind for kind in facts().pickupable}
    targets = {kind.lower(): kind for kind in ([LAMP] if look else places)}
    kind = kinds[_require("goal.object", wanted.object, kinds)]
    target = targets[_require("goal.target", wanted.target, targets)]
    if not look and kind not in facts().can_contain[target]:
        raise GameError(f"goal.target: no {wanted.object} may be put in a {wanted.target}.")
    if task in TOOLS:
        tool, affordance, state = TOOLS[task]
        if tool not in places:
            raise GameError(f"goal.task: {state} needs a {tool.lower()} among the receptacles.")
        if kind not in facts().affordances[affordance]:
            able = ", ".join(sorted(k.lower() for k in facts().affordances[affordance]))
            raise GameError(
                f"goal.object: a {wanted.object} cannot be made {state}; these can: {able}."
            )
    words = {"obj": wanted.object, "recep": wanted.target, "toggle": wanted.target}
    return SceneGoal(task, kind, target, facts().templates[task][0].format(**words) + ".")


def _check_enough(goal: SceneGoal, things: Iterable[Thing]) -> None:
    needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
    there = sum(thing.type == goal.object_type for thing in things)
    if there < needed:
        raise GameError(
            f"objects: the goal needs {needed} {goal.object_type.lower()}, got {there}."
        )


def _position(copy: int) -> tuple[float, float, float]:
    """Of the first, second, ... of a type; the game numbers those of a type downward by their ids."""
    return (99 - copy, 1.0, 0.0)


def _require(what: str, name: str, valid: Iterable[str]) -> str:
    names = list(valid)
    if name not in names:
        raise GameError(f"{what}: there is no {name!r}. {did_you_mean(name, names)}")
    return name
