"""A user's own few-shot examples: a TOML file.

::

    rules = "..."                          # optional: what the prompt begins with, instead of ours

    [[example]]
    type = "pick_and_place_simple"         # optional: for tasks of this type only
    text = '''
    ...a transcript, exactly as the model is to see it...
    '''
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paw_gym.naming import did_you_mean

_KEYS = {"rules": str, "example": list}
_EXAMPLE_KEYS = {"type": str, "text": str}


@dataclass(frozen=True, slots=True)
class WrittenExample:
    """An example as a text."""

    text: str
    task_type: str | None = None
    """of the tasks it is for; ``None``: of all"""


@dataclass(frozen=True, slots=True)
class ExamplesFile:
    """What such a file holds."""

    examples: tuple[WrittenExample, ...]
    rules: str | None = None


def read_examples(path: str | Path) -> ExamplesFile:
    """Reads a file of examples.

    Raises:
        ValueError: there is no such file, or it is not of the form above; names what is wrong with it.
    """
    place = Path(path).expanduser()
    try:
        data = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"agent.examples_file={path}: cannot be read ({reason}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"agent.examples_file={path}: not valid TOML: {error}.") from error
    _check(data, _KEYS, str(path), "the file")
    entries = data.get("example", [])
    if not entries:
        raise ValueError(
            f"agent.examples_file={path}: holds no [[example]]; each has a 'text' and may have a 'type'."
        )
    found = [_example(entry, number, path) for number, entry in enumerate(entries, start=1)]
    return ExamplesFile(tuple(found), data.get("rules"))


def _example(entry: Any, number: int, path: str | Path) -> WrittenExample:
    where = f"example {number}"
    if not isinstance(entry, Mapping):
        raise ValueError(
            f"agent.examples_file={path}: {where} is a table [[example]], got {entry!r}."
        )
    _check(entry, _EXAMPLE_KEYS, str(path), where)
    text = entry.get("text", "").strip("\n")
    if not text.strip():
        raise ValueError(f"agent.examples_file={path}: {where} has no 'text'.")
    return WrittenExample(text, entry.get("type"))


def _check(data: Mapping[str, Any], keys: Mapping[str, type], path: str, where: str) -> None:
    for key, value in data.items():
        if key not in keys:
            raise ValueError(
                f"agent.examples_file={path}: {where} has the unknown key {key!r}. "
                + did_you_mean(key, keys)
            )
        if not isinstance(value, keys[key]):
            wanted = "a text" if keys[key] is str else "tables [[example]]"
            raise ValueError(f"agent.examples_file={path}: {key!r} of {where} is {wanted}.")


def chosen(
    examples: Sequence[WrittenExample], task_type: str, count: int, strict: bool = True
) -> list[str]:
    """The examples of a task's prompt: the first ones of its type, or of no type.

    Args:
        examples: to choose from.
        task_type: of the task.
        count: how many; fewer where there are no more.
        strict: whether examples of other types are an error; else they serve.

    Raises:
        ValueError: there are only examples of other types.
    """
    fitting = [e.text for e in examples if e.task_type in (None, task_type)]
    if count and examples and not fitting:
        if not strict:
            return [e.text for e in examples[:count]]
        types = sorted({str(e.task_type) for e in examples})
        raise ValueError(
            f"agent.examples_file has no example for tasks of type {task_type!r}, only for "
            f"{', '.join(types)}. Add one, or one without a type."
        )
    return fitting[:count]
