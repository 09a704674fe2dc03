"""Checks of what is registered: its id, its entry point, its options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium.envs.registration import ENV_ID_RE

from paw_gym.constructors import parameters_in, takes_any
from paw_gym.core import TextEnv
from paw_gym.functional import GeneratorEnv, GeneratorEnvFactory
from paw_gym.naming import nearest
from paw_gym.validation import EnvDefinitionError, check_max_steps, found

_OWN_OPTIONS = ("tasks", "max_steps", "solve", "description", "replace")
"""options of ``register_text_env`` itself"""


def checked_entry_point(
    id: Any, entry_point: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """The callable by which Gymnasium makes the environment, and its arguments."""
    try:
        _check_id(id)
        if isinstance(entry_point, str):
            return _check_string(entry_point), _of_class(options, kwargs)
        if isinstance(entry_point, type):
            return _checked_class(entry_point, options, kwargs)
        return _factory(id, entry_point, options, kwargs)
    except EnvDefinitionError as error:
        error.owner = error.owner or str(id)
        raise


def _check_id(id: Any) -> None:
    match = ENV_ID_RE.fullmatch(id) if isinstance(id, str) else None
    if match is None or (match["version"] is None and "-v" in id):
        raise EnvDefinitionError(
            f"the id is {found(id)}; expected namespace/Name-vN, such as 'me/Maze-v0'.", "id"
        )


def _check_string(entry_point: str) -> str:
    module, sign, name = entry_point.partition(":")
    if not (sign and all(map(str.isidentifier, module.split("."))) and name.isidentifier()):
        raise EnvDefinitionError(
            f"the entry point is {entry_point!r}; expected 'module:Class', such as 'me.maze:MazeEnv'.",
            "entry_point",
        )
    return entry_point


def _of_class(options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("tasks", "solve"):
        if name in options:
            raise EnvDefinitionError(
                f"{name} is an option of generator functions; expected none for a class, which has "
                + (
                    "its tasks from super().__init__."
                    if name == "tasks"
                    else "a method reference_solution."
                ),
                name,
            )
    budget = {name: options[name] for name in ("max_steps",) if name in options}
    if budget:
        check_max_steps(budget["max_steps"])
    return {**kwargs, **budget}


def _checked_class(
    cls: type, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    if not issubclass(cls, TextEnv):
        raise EnvDefinitionError(
            f"{cls.__name__} is no subclass of TextEnv; expected one, or a generator function.",
            "entry_point",
        )
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise EnvDefinitionError(
            f"{cls.__name__} lacks {' and '.join(lacking)}; expected a class that implements both "
            "_start and _act.",
            "entry_point",
        )
    arguments = _of_class(options, kwargs)
    parameters = parameters_in(cls)
    if not takes_any(parameters):
        _check_names(arguments, parameters, f"{cls.__name__}.__init__", ("description", "replace"))
    return cls, arguments


def _factory(
    id: str, function: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[GeneratorEnvFactory, dict[str, Any]]:
    if isinstance(function, TextEnv):
        raise EnvDefinitionError(
            f"the entry point is {found(function)}; expected the class itself, not an environment "
            "that was made of it.",
            "entry_point",
        )
    accepted = [name for name in parameters_in(GeneratorEnv) if name != "play"]
    _check_names(kwargs, accepted, "register_text_env", _OWN_OPTIONS)
    given = {"tasks": None, **options}
    return GeneratorEnvFactory(id, function, **given), dict(kwargs)


def _check_names(
    given: Iterable[str], accepted: Iterable[str], whose: str, more: Iterable[str]
) -> None:
    known = [*accepted, *more]
    for name in given:
        if name not in known:
            raise EnvDefinitionError(
                f"{whose} has no option {name!r}; expected {nearest(name, known, 1)[0]!r}?", name
            )
