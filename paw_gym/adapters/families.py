"""Tasks of an environment from elsewhere: one for each seed, with the same ids in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from paw_gym.core import Task, TaskSet
from paw_gym.generated import sampled_tasks
from paw_gym.internals.canonical import canonical, is_json


def seeded_tasks(
    package: str,
    env: str,
    arguments: Mapping[str, Any],
    split: str,
    num_tasks: int | None,
    make: Callable[[str, int], Task],
) -> TaskSet:
    """The tasks of a split, whose ids begin with the environment and its arguments.

    Args:
        package: where the environment comes from.
        env: its id there.
        arguments: of its constructor.
        split: ``train``, ``valid`` or ``test``.
        num_tasks: seeds of the split; ``None``: the default number.
        make: ``make(task_id, seed)``.

    Raises:
        ValueError: an argument is known only by where it lies in memory, so that its tasks would be others in
            every process.
    """
    named = "".join(f",{name}={_shown(env, name, arguments[name])}" for name in sorted(arguments))
    family = f"{package}/{env}{named}"
    return sampled_tasks(family, split, lambda rng: rng.getrandbits(31), str, make, num_tasks)


def _shown(env: str, name: str, value: Any) -> str:
    """A value as it is if JSON can hold it and an id can show it, else a hash of what it holds."""
    try:
        text = canonical(value)
        if is_json(value) and str(value).isprintable() and ".." not in str(value):
            return str(value)
    except TypeError as error:
        raise ValueError(
            f"The argument {name} of {env} cannot be part of a task's id: {error}."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
