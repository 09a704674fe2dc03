"""The name of an adapted environment's tasks: its id and its arguments, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from paw_gym.internals.canonical import canonical, is_json


def family_name(package: str, env: str, arguments: Mapping[str, Any]) -> str:
    """What the ids of an environment's tasks begin with, and what their seeds follow from.

    Args:
        package: where the environment comes from.
        env: its id there.
        arguments: what it is made with.

    Raises:
        ValueError: an argument is known only by where it lies in memory, so that its tasks would be others in
            every process.
    """
    settings = "".join(
        f",{name}={_shown(env, name, arguments[name])}" for name in sorted(arguments)
    )
    return f"{package}/{env}{settings}"


def _shown(env: str, name: str, value: Any) -> str:
    """A value as it is where JSON can hold it and an id can show it, else a hash of what it holds."""
    try:
        text = canonical(value)
        if is_json(value) and str(value).isprintable() and ".." not in str(value):
            return str(value)
    except TypeError as error:
        raise ValueError(
            f"The argument {name} of {env} cannot be part of a task's id: {error}."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
