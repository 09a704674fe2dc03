"""A user's own few-shot examples: a TOML file.

::

    rules = "..."                          # optional: begins the prompt in place of the agent's own rules

    [[example]]
    type = "pick_and_place_simple"         # optional: for tasks of this type only
    text = '''
    ...a transcript, exactly as the model is to see it...
    '''
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import BeforeValidator

from paw_train.settings.base import Group


def _stripped(text: Any) -> Any:
    """A transcript without blank lines around it; of a blank text nothing remains."""
    if not isinstance(text, str):
        return text
    return text.strip("\n") if text.strip() else ""


class WrittenExample(Group):
    """An example as a text."""

    text: Annotated[str, MinLen(1), BeforeValidator(_stripped)]
    """transcript, as the model is to see it"""
    type: str | None = None
    """type of the tasks it is for; null: all"""


class ExamplesFile(Group):
    """The contents of such a file."""

    rules: str | None = None
    """beginning of the prompt; null: the agent's own rules"""
    example: list[Any] = []
    """the examples, as tables"""


def read_examples(path: str | Path) -> tuple[list[WrittenExample], str | None]:
    """Reads a file of examples.

    Returns:
        (the examples, the rules or ``None``)

    Raises:
        ValueError: there is no such file, or it is not of the form above; names what is wrong with it.
    """
    try:
        data = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        file = ExamplesFile.read(data)
        if not file.example:
            raise ValueError("holds no [[example]]; each has a 'text' and may have a 'type'.")
        numbered = enumerate(file.example, start=1)
        return [WrittenExample.read(e, f"example {n}") for n, e in numbered], file.rules
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"agent.examples_file={path}: cannot be read ({reason}).") from error
    except ValueError as error:  # not TOML, not text, or not of that form
        raise ValueError(f"agent.examples_file={path}: {error}") from error


def matching(
    examples: Sequence[WrittenExample], task_type: str, count: int, strict: bool = True
) -> list[str]:
    """The examples of a task's prompt: the first ones of its type, or of no type.

    Args:
        examples: to choose from.
        task_type: of the task.
        count: how many; fewer where there are no more.
        strict: whether examples of other types are an error; else they are used.

    Raises:
        ValueError: there are only examples of other types.
    """
    fitting = [e.text for e in examples if e.type in (None, task_type)]
    if count and examples and not fitting:
        if not strict:
            return [e.text for e in examples[:count]]
        types = sorted({str(e.type) for e in examples})
        raise ValueError(
            f"agent.examples_file has no example for tasks of type {task_type!r}, only for "
            f"{', '.join(types)}. Add one, or one without a type."
        )
    return fitting[:count]
