"""Checks of the values that an environment's code hands over, and what that code raised, in one sentence."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from paw_gym.internals.canonical import require_json
from paw_gym.task import Outcome, Task

INFO_KEYS = (
    "task_id",
    "task_type",
    "instruction",
    "admissible_actions",
    "action_is_valid",
    "success",
    "score",
)
"""keys that ``info`` holds at reset and at every step"""

_RESERVED = frozenset({*INFO_KEYS, "transition", "episode_id", "messages"})
"""keys of ``info`` that the core and ``AgentInterface`` write"""

_ID_HINT = (
    "a non-empty str of printable characters, without white space at its ends and no path that "
    "leads out of a folder ('/' first, or '..'), such as 'easy/3'"
)


class EnvDefinitionError(ValueError):
    """The code of an environment breaks the contract; names it, the field, what came and what should."""

    text: str
    """the message without the environment"""
    field: str
    """what is wrong, such as ``Outcome.reward``: the same for the same cause"""
    owner: str
    """the environment, once it is known"""

    def __init__(self, text: Any, field: str = "", owner: str = "") -> None:
        if isinstance(text, EnvDefinitionError):  # Gymnasium raises a subprocess's error like this
            text, field, owner = text.text, text.field, text.owner
        super().__init__(text, field, owner)
        self.text, self.field, self.owner = str(text), field, owner

    def __str__(self) -> str:
        return f"{self.owner}: {self.text}" if self.owner else self.text


def found(value: object) -> str:
    """A value as an error shows it: its type and the beginning of its text."""
    if value is None:
        return "None"
    noun = type(value).__name__
    return f"{'an' if noun[0].lower() in 'aeio' else 'a'} {noun}, {value!r:.60}"


def _is_filled(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: object) -> bool:
    plain = type(value) is float or isinstance(value, Real)  # the second one is slow
    return plain and math.isfinite(value)  # type: ignore[arg-type]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_share(value: object) -> bool:
    return value is None or (isinstance(value, Real) and 0.0 <= float(value) <= 1.0)


def _is_listing(value: object) -> bool:
    if value is None:
        return True
    if type(value) is list and {str}.issuperset(map(type, value)):
        return True  # the usual case, fast: lists are long, and come at every step
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return listed and all(isinstance(action, str) for action in value)  # type: ignore[attr-defined]


_Rule = tuple[str, Callable[[object], bool], str]

_OUTCOME: tuple[_Rule, ...] = (
    ("observation", lambda value: isinstance(value, str), "a str"),
    ("reward", _is_number, "a finite number"),
    ("terminated", _is_flag, "True or False"),
    ("success", _is_flag, "True or False"),
    ("score", _is_share, "None or a number from 0 to 1"),
    ("action_is_valid", _is_flag, "True or False"),
    ("admissible_actions", _is_listing, "None or a list of str"),
    ("info", lambda value: isinstance(value, Mapping), "a dict"),
    ("truncated", _is_flag, "True or False"),
)
_TASK: tuple[_Rule, ...] = (
    ("instruction", _is_filled, "a str that says what to do"),
    ("type", _is_filled, "a non-empty str"),
)


def expect(holds: bool, what: str, value: object, expected: str, field: str) -> None:
    """Raises ``EnvDefinitionError`` unless a condition holds that a value has to meet."""
    if not holds:
        raise EnvDefinitionError(f"{what} {found(value)}; expected {expected}.", field)


def check_outcome(outcome: Outcome, when: str) -> None:
    """Raises ``EnvDefinitionError`` unless it is an ``Outcome`` with fields of the right types."""
    example = "Outcome('You see a door.', reward=0.0, terminated=False)"
    is_one = isinstance(outcome, Outcome)
    expect(is_one, f"{when} gave", outcome, f"an Outcome, such as {example}", "Outcome")
    _check_fields(outcome, _OUTCOME, f"{when} gave an Outcome whose", "Outcome")
    if not outcome.info:
        return
    if taken := sorted(_RESERVED.intersection(outcome.info)):
        raise EnvDefinitionError(
            f"{when} gave an Outcome whose info has the key {taken[0]!r}; expected other keys than "
            "those that info always holds: give it another name.",
            "Outcome.info",
        )
    try:
        require_json(dict(outcome.info), "info")
    except TypeError as error:
        raise EnvDefinitionError(
            f"{when} gave an Outcome whose info is not plain JSON values: {error}", "Outcome.info"
        ) from None


def check_first_outcome(outcome: Outcome, when: str) -> None:
    """The same for the outcome that an episode starts with: nothing has been done yet."""
    check_outcome(outcome, when)
    for name in ("terminated", "truncated", "success"):
        if getattr(outcome, name):
            raise EnvDefinitionError(
                f"{when} gave an Outcome whose {name} is already True; expected False: an episode "
                "starts before the first action.",
                f"first Outcome.{name}",
            )


def _check_fields(holder: object, rules: Iterable[_Rule], whose: str, kind: str) -> None:
    for name, holds, expected in rules:
        value = getattr(holder, name)
        if not holds(value):
            expect(False, f"{whose} {name} is", value, expected, f"{kind}.{name}")


def check_task(task: Task, where: str) -> None:
    """Raises ``EnvDefinitionError`` unless it is a ``Task`` with fields of the right types."""
    example = "a Task, such as Task('easy/3', 'Find the key.')"
    expect(isinstance(task, Task), f"{where} is", task, example, "Task")
    expect(_is_id(task.id), f"{where}: the id is", task.id, _ID_HINT, "Task.id")
    _check_fields(task, _TASK, f"{where} ({task.id!r}): its", "Task")


def check_task_ids(ids: Sequence[str]) -> None:
    """Raises ``EnvDefinitionError`` unless the ids can name tasks: good names, each for one task."""
    for number, task_id in enumerate(ids):
        expect(_is_id(task_id), f"task id {number} is", task_id, _ID_HINT, "Task.id")
    if len(set(ids)) < len(ids):
        twice = next(task_id for task_id, count in Counter(ids).items() if count > 1)
        first, second, *_ = (number for number, task_id in enumerate(ids) if task_id == twice)
        raise EnvDefinitionError(
            f"Task ids must be unique: tasks {first} and {second} are both {twice!r}; expected an id of "
            "its own for each.",
            "Task.id",
        )


def _is_id(task_id: object) -> bool:
    """True if an id can be part of file names and of addresses."""
    return (
        isinstance(task_id, str)
        and task_id != ""
        and task_id.isprintable()
        and task_id == task_id.strip()
        and task_id[0] != "/"
        and not (".." in task_id and ".." in task_id.split("/"))
    )


def check_max_steps(max_steps: Any) -> None:
    """Raises ``EnvDefinitionError`` unless it is a step budget."""
    whole = isinstance(max_steps, int | np.integer) and not isinstance(max_steps, bool)
    holds = whole and max_steps >= 1
    expect(holds, "max_steps is", max_steps, "an int of at least 1", "max_steps")


def listed_tasks(tasks: Any, where: str = "tasks") -> list[Any]:
    """The tasks of ``tasks=...`` as a checked list."""
    hint = "a list of Task objects, such as [Task('easy/3', 'Find the key.')]"
    holds = isinstance(tasks, Iterable) and not isinstance(tasks, Mapping | str | bytes)
    expect(holds, f"{where} is", tasks, hint, "tasks")
    listed = list(tasks)
    for number, task in enumerate(listed):
        check_task(task, f"{where}[{number}]")
    check_task_ids([task.id for task in listed])
    return listed


def check_actions(actions: Any, what: str) -> None:
    """Raises ``EnvDefinitionError`` unless a solver's answer is a list of actions."""
    holds = actions is not None and _is_listing(actions)
    expect(holds, f"{what} gave", actions, "a list of actions (str)", "solve")


_HERE = Path(__file__).parents[1]
_OURS = [_HERE, _HERE.with_name("paw_train"), Path(gymnasium.__file__).parent]
"""folders of code that an environment's author has not written"""
_STANDARD = Path(sysconfig.get_path("stdlib"))
_LONGEST = 500


@contextmanager
def naming_authors_line(what: str) -> Iterator[None]:
    """Turns what an author's own code raises into a ``ValueError`` with its line; errors of our code pass."""
    try:
        yield
    except (EnvDefinitionError, NotImplementedError):
        raise
    except Exception as error:
        if _place(error) is None:
            raise
        raise ValueError(f"{what}: the environment raised {with_place(error)}.") from error


def with_place(error: BaseException) -> str:
    """An exception, with the line of the environment's own code that it comes from, if any."""
    text, place = f"{type(error).__name__}: {error}", _place(error)
    return f"{text} ({place[0].name}, line {place[1]})" if place else text


def _place(error: BaseException) -> tuple[Path, int | None] | None:
    """The innermost line of the environment's own code that an exception passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_authors(frame.filename):
            return Path(frame.filename), frame.lineno
    return None


def is_authors(file: str) -> bool:
    """True if a file of code is an environment's own: not Python's, Gymnasium's or this project's."""
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    others = _OURS if installed else [*_OURS, _STANDARD]
    return file[0] != "<" and not any(map(Path(file).is_relative_to, others))


def reason_of(error: str) -> str:
    """An episode's error in one line: of a traceback only the exception, with all lines of the message."""
    lines = error.splitlines()
    frames = [i for i, line in enumerate(lines) if line.lstrip().startswith('File "')]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while frames and rest and rest[0].startswith(" "):  # the source of the last frame
        rest = rest[1:]
    reason = " ".join(" ".join(rest).split()) or "unknown"
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
