"""Secrets in settings: a run records its settings, so they hold the name of a variable, never the secret.

``env.kwargs.token=env:MY_TOKEN`` stands for the value of the environment variable ``MY_TOKEN``; it is
looked up when the environment is made, or a server is asked about it, and only there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from paw_gym.internals.constructors import names_another

_NAMED = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|credentials?)$", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"://[^/\s@]+:[^/\s@]*@")
_VARIABLE = "env:"


def refuse_secrets(values: Mapping[str, Any], where: str) -> None:
    """Raises ``ValueError`` for a secret among the values; the message does not repeat it.

    Args:
        values: settings, nested.
        where: their name, for the message.
    """
    for key, value in values.items():
        name = f"{where}.{key}"
        if isinstance(value, Mapping):
            refuse_secrets(value, name)
        elif isinstance(value, str) and _is_secret(str(key), value):
            raise ValueError(
                f"{name} holds a secret, and a run writes its settings to its record. Put the value "
                f"into an environment variable and give its name: {name}=env:NAME."
            )


def _is_secret(key: str, value: str) -> bool:
    if value.startswith(_VARIABLE):
        return False
    return bool(_NAMED.search(key) or _IN_ADDRESS.search(value))


def with_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with ``env:NAME`` replaced by what that environment variable holds.

    Raises:
        ValueError: there is no such variable.
    """
    return {key: _resolved(str(key), value) for key, value in values.items()}


def asked_with(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by which a server is asked about an environment, with their secrets; else none."""
    return with_secrets(kwargs) if names_another(env_id, kwargs) else {}


def _resolved(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_secrets(value)
    if not isinstance(value, str) or not value.startswith(_VARIABLE):
        return value
    variable = value.removeprefix(_VARIABLE)
    if variable not in os.environ:
        raise ValueError(f"{key}={value}: there is no environment variable {variable!r}.")
    return os.environ[variable]
