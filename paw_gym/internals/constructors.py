"""The arguments that classes and functions take, and those of a registered environment without making one.

Wherever an environment is named, ``module:id`` names it too: the module is imported first, and
registers the id.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from paw_gym.internals.naming import did_you_mean


def registered_id(name: str) -> str:
    """The id in ``id`` or ``module:id``, with the module imported."""
    from gymnasium.envs.registration import registry

    module, _, env_id = name.rpartition(":")
    if not module:
        return name
    before = set(registry)
    import_named(module)
    if env_id not in registry:
        # of those that it has registered, or of all; Gymnasium's own have no namespace
        known = [i for i in registry if i not in before] or [i for i in registry if "/" in i]
        hint = did_you_mean(env_id, known)
        raise ValueError(f"The module {module!r} registers no environment {env_id!r}. {hint}")
    return env_id


def import_named(module: str) -> Any:
    """Imports a module that the user names, installed or a file of the current folder, and returns it.
    Nothing else comes from the current folder, which may be full of other people's files."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(
            f"{module!r} is not the name of a Python module. For a file my_envs.py in this folder it is "
            "my_envs, for one in a package package.my_envs."
        )
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # after installed modules
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the module itself imports
        raise ValueError(
            f"No module named {module!r}, neither installed nor as {module.replace('.', '/')}.py in this "
            "folder."
        ) from error


def need(package: str, extra: str, purpose: str) -> ModuleType:
    """Imports an optional package."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise not_installed(package, extra, purpose) from error


def not_installed(package: str, extra: str, purpose: str) -> ImportError:
    """The error that says what an optional package is for, and how to install it."""
    return ImportError(
        f"{purpose} needs the package {package!r}, which is not installed: "
        f"pip install '.[{extra}]' in your clone of PaW-Gym",
        name=package,
    )


def creator_of(name: str) -> Callable[..., Any] | None:
    """The class or function that makes an environment; ``None``: there is none with that id."""
    from gymnasium.envs.registration import load_env_creator, registry

    spec = registry.get(registered_id(name))
    if spec is None or spec.entry_point is None:
        return None
    entry = spec.entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def parameters_of(name: str) -> Mapping[str, inspect.Parameter] | None:
    """The keyword arguments of an environment; ``None``: an unknown id, or its class takes ``**kwargs``."""
    creator = creator_of(name)
    if creator is None:
        return None
    found = parameters_in(creator)
    return None if takes_any(found) else found


def defaults_of(name: str) -> dict[str, Any]:
    """The defaults of an environment's arguments, where they have one and it can be known."""
    parameters = (parameters_of(name) or {}).items()
    return {k: p.default for k, p in parameters if p.default is not p.empty}


def names_another(name: str, kwargs: Mapping[str, Any]) -> bool:
    """True if an environment stands for one on a server, and the arguments name that one."""
    return hasattr(creator_of(name), "defaults") and {"url", "remote_id"} <= kwargs.keys()


def has_splits(name: str, kwargs: Mapping[str, Any] | None = None) -> bool:
    """True if an environment is made with a ``split``; one that is not registered may be, and without
    ``kwargs`` (as for ``class_defaults``) one that is played elsewhere."""
    creator: Any = creator_of(name)
    if kwargs is not None and names_another(name, kwargs):
        return bool(creator.defaults(**kwargs).has_splits)
    if creator is None or getattr(creator, "arguments_elsewhere", False):
        return True
    classes = creator.__mro__ if isinstance(creator, type) else [creator]
    for level in classes:
        found = parameters_in(level)
        if "split" in found or not takes_any(found):
            return "split" in found
    return False


def parameters_in(creator: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function, or of a class's constructor, by name and without ``self``."""
    # a class may choose what it makes in __new__, which then takes anything
    called = getattr(creator, "__init__") if isinstance(creator, type) else creator  # noqa: B009
    return {k: p for k, p in inspect.signature(called).parameters.items() if k != "self"}


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """True if there is a ``**kwargs`` among them."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_arguments(name: str, arguments: Iterable[str], where: str = "") -> None:
    """Raises ``ValueError`` for an argument that the environment does not take; names the nearest."""
    parameters = parameters_of(name)
    if parameters is None:
        return
    for argument in arguments:
        if argument not in parameters:
            env_id = name.rpartition(":")[2]
            start = f"{where}.{argument}: " if where else ""
            raise ValueError(
                f"{start}{env_id} has no setting {argument!r}. {did_you_mean(argument, parameters)} "
                f"`paw envs {name}` describes them."
            )
