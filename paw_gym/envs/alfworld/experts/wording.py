"""Read ALFWorld's texts back: the task sentence, the receptacles of a room, what a step did.

For agents that may know only what they are shown; nothing here looks into an engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from paw_gym.envs.alfworld.native.goal import TASK_TYPES, Goal
from paw_gym.envs.alfworld.procedural.rooms import facts
from paw_gym.envs.alfworld.procedural.tasks import make_goal

_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.MULTILINE)
_LISTED = re.compile(r"\ban? ([a-z]+ \d+)")
_NAME = r"([a-z]+ \d+)"
_PLACE = re.compile(
    rf"(?:On the {_NAME}, you see|The {_NAME} is (?:open|closed)|You (?:open|close) the {_NAME}\.)"
)
_PICK = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.")
_PUT = re.compile(rf"You (?:put|move) the {_NAME} (?:in/on|to) the {_NAME}\.")
_TREAT = re.compile(rf"You (?:clean|heat|cool) the {_NAME} using the {_NAME}\.")


def parse_task(text: str) -> Goal:
    """The goal that a task sentence states.

    Args:
        text: an opening text, or the sentence alone ("put a hot apple in fridge.").

    Raises:
        ValueError: when the sentence is none of ALFWorld's templates (human annotations are not).
    """
    found = _TASK.search(text)
    sentence = (found.group(1) if found else text).strip().removesuffix(".")
    for task_type, pattern in _patterns():
        match = pattern.fullmatch(sentence)
        if match:
            words = match.groupdict()
            target = words.get("recep") or words["toggle"]
            return make_goal(task_type, words["obj"], target)
    raise ValueError(
        f"not one of ALFWorld's task sentences: {sentence!r}; expected one like 'put a hot apple in "
        "fridge' (see the templates in paw_gym/envs/alfworld/assets/facts.json)"
    )


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    words = {slot: rf"(?P<{slot}>\w+)" for slot in ("obj", "recep", "toggle")}
    return tuple(
        (task_type, re.compile(template.format(**words)))
        for task_type in TASK_TYPES
        for template in facts().templates[task_type]
    )


def listed_receptacles(opening: str) -> list[str]:
    """The receptacles that the opening text names, in its order."""
    found = re.search(r"you see (.*)", opening)
    return _LISTED.findall(found.group(1)) if found else []


@dataclass(frozen=True, slots=True)
class Event:
    """The effect of a step, read from its observation; names as displayed, None where it shows nothing."""

    place: str | None = None
    """the receptacle that it is about"""
    taken: str | None = None
    put: str | None = None
    treated: str | None = None
    """the object that was cleaned, heated or cooled"""


def read_event(observation: str) -> Event:
    """The effect of a step, read from its observation."""
    if match := _PICK.search(observation):
        return Event(match.group(2), taken=match.group(1))
    if match := _PUT.search(observation):
        return Event(match.group(2), put=match.group(1))
    if match := _TREAT.search(observation):
        return Event(match.group(2), treated=match.group(1))
    if match := _PLACE.search(observation):
        return Event(next(name for name in match.groups() if name))
    return Event()


def type_of(name: str) -> str:
    """ "cabinet 3" -> "cabinet"."""
    return name.split(" ", 1)[0]


def number_of(name: str) -> int:
    """ "cabinet 3" -> 3."""
    return int(name.split(" ", 1)[1])
