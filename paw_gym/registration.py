"""Registering text environments with Gymnasium: by string, so that it costs nothing until one is made.

``import paw_gym`` registers; so does ``gymnasium.make("paw_gym:paw_gym/ALFWorld-v0")``, which imports the
module before the colon. Other packages announce theirs with an entry point of the group ``paw_gym.envs``
that names a module (or a function) which calls ``register_text_env``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PLUGIN_GROUP = "paw_gym.envs"


@dataclass(frozen=True, slots=True)
class TextEnvSpec:
    """A registered text environment as ``paw envs`` lists it."""

    id: str
    description: str
    package: str


_REGISTERED: dict[str, TextEnvSpec] = {}
"""grows with Gymnasium's own registry, which has no room for a description"""

_OWN = {
    "paw_gym/2048-v0": (
        "paw_gym.envs.game_2048:Game2048Env",
        "slide equal tiles together until the target tile appears; new tiles are random",
    ),
    "paw_gym/ALFWorld-v0": (
        "paw_gym.envs.alfworld.env:ALFWorldEnv",
        "household tasks in six types: real games, or procedural ones with nothing to download",
    ),
    "paw_gym/SearchQA-v0": (
        "paw_gym.envs.search_qa.env:SearchQAEnv",
        "questions to answer with a search engine: seven benchmarks, or a made-up encyclopedia",
    ),
    "paw_gym/Sokoban-v0": (
        "paw_gym.envs.sokoban:SokobanEnv",
        "push boxes onto goals in rooms made by seed, each of them solvable",
    ),
    "paw_gym/Sudoku-v0": (
        "paw_gym.envs.sudoku:SudokuEnv",
        "4x4 and 9x9 puzzles made by seed, each with one solution",
    ),
    "paw_gym/Tau2-v0": (
        "paw_gym.envs.tau2.env:Tau2Env",
        "customer service by a policy, with tools: the text domains of tau2-bench",
    ),
    "paw_gym/ToyText-v0": (
        "paw_gym.envs.toy_text:ToyTextEnv",
        "Gymnasium's frozen lakes, taxi, cliff and blackjack as text",
    ),
    "paw_gym/WebShop-v0": (
        "paw_gym.envs.webshop.env:WebShopEnv",
        "shopping by search and click: real products, or generated ones with nothing to download",
    ),
}

_CLIENTS = {
    "paw_gym/Remote-v0": (
        "paw_gym.remote.env:RemoteEnv",
        "any environment of a gateway (paw serve gateway), by its address and id",
    ),
}
"""environments that are made elsewhere"""


def register_text_env(
    id: str,
    entry_point: str | Callable[..., Any] | None = None,
    *,
    tasks: Iterable[Any] | None = None,
    max_steps: int | None = None,
    solve: Callable[..., Any] | None = None,
    description: str = "",
    replace: bool = False,
    **kwargs: Any,
) -> Any:
    """Registers a text environment, so that ``gymnasium.make(id)`` finds it.

    Three sizes. A class or its ``"module:Class"`` string::

        register_text_env("me/Maze-v0", "me.maze:MazeEnv", size=4)

    or a generator function over a list of tasks, which yields an ``Outcome`` and gets an action::

        @register_text_env("me/Parrot-v0", tasks=[Task("a", "Say 'hello'.")])
        def parrot(task, rng):
            said = yield Outcome("Say something.")
            yield Outcome("Thanks.", reward=1.0, terminated=True, success=said == "hello")

    Args:
        id: ``namespace/Name-vN``.
        entry_point: the class, its string, or the generator function.
        tasks: the tasks of a generator function (``Task`` objects).
        max_steps: step budget; 50 for a generator function, a class's own by default.
        solve: ``solve(task, rng)`` of a generator function: the actions that solve a task, found with
            no model. The contract suite, experts and demonstrations need it. ``rng`` samples what
            the function's own ``rng`` sampled.
        description: one line for ``paw envs``; by default the first line of the docstring.
        replace: take the place of the environment that is registered under this id.
        kwargs: defaults of the class's keyword arguments.

    Returns:
        The entry point, so that it works as a decorator.

    Raises:
        EnvDefinitionError: anything is wrong with it (a taken id, an option that there is not, wrong
            tasks, ...); names what it is, and what was expected. Nothing is registered then.
    """
    more: dict[str, Any] = {"tasks": tasks, "max_steps": max_steps, "solve": solve}
    if entry_point is None:
        return lambda function: register_text_env(
            id, function, description=description, replace=replace, **more, **kwargs
        )
    from paw_gym.definition import checked_entry_point

    options = {name: value for name, value in more.items() if value is not None}
    target, kwargs = checked_entry_point(id, entry_point, options, kwargs)
    if not replace:
        _require_free(id, entry_point, kwargs)
    doc = "" if isinstance(entry_point, str) else (entry_point.__doc__ or "").strip()
    package = entry_point if isinstance(entry_point, str) else entry_point.__module__
    _REGISTERED[id] = TextEnvSpec(
        id, description or (doc.splitlines() or [""])[0], package.split(":")[0].split(".")[0]
    )
    _register(id, target, kwargs)
    return entry_point


def _require_free(id: str, entry_point: Any, kwargs: dict[str, Any]) -> None:
    from gymnasium.envs.registration import registry

    from paw_gym.validation import EnvDefinitionError

    if id not in registry or _defined_anew(registry[id], entry_point, kwargs):
        return
    owner = f" by {_REGISTERED[id].package}" if id in _REGISTERED else " by Gymnasium or a plug-in"
    raise EnvDefinitionError(
        f"this id is registered already{owner}; expected one that is free (count the version up: "
        "-v1), or replace=True to take its place.",
        "id",
        id,
    )


def _defined_anew(spec: Any, entry_point: Any, kwargs: dict[str, Any]) -> bool:
    """Whether it is the same definition, run again: a notebook's cell, or a module that is reloaded."""
    if isinstance(entry_point, str):
        return bool(spec.entry_point == entry_point and spec.kwargs == kwargs)
    before = getattr(spec.entry_point, "play", spec.entry_point)
    places = [
        (getattr(d, "__module__", d), getattr(d, "__qualname__", d)) for d in (before, entry_point)
    ]
    return before is not entry_point and places[0] == places[1]


def _register(id: str, entry_point: Any, kwargs: dict[str, Any]) -> None:
    from gymnasium.envs.registration import register, registry

    registry.pop(id, None)
    # the environment counts its own steps and refuses one without a reset: the wrappers that do so
    # (TimeLimit, OrderEnforcing) keep state that restore_state does not reach
    register(id, entry_point=entry_point, kwargs=kwargs, order_enforce=False)


def register_all() -> None:
    """Registers the environments of this package and of installed plug-ins; calling it again is harmless."""
    for id, (entry_point, description) in {**_OWN, **_CLIENTS}.items():
        if id not in _REGISTERED:  # ours are right, and checking them would import the core
            _REGISTERED[id] = TextEnvSpec(id, description, "paw_gym")
            _register(id, entry_point, {})
    if not _PLUGINS_LOADED:
        _PLUGINS_LOADED.append(True)
        for plugin in metadata.entry_points(group=PLUGIN_GROUP):
            _load(plugin)


_PLUGINS_LOADED: list[bool] = []


def _load(plugin: metadata.EntryPoint) -> None:
    try:
        loaded = plugin.load()
        if callable(loaded):
            loaded()
    except Exception as error:  # a broken plug-in must not take the others with it
        warnings.warn(
            f"The paw_gym plug-in {plugin.name!r} ({plugin.value}) failed to load and is left out: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )


def text_env_ids() -> list[str]:
    """The ids of all registered text environments, sorted."""
    return sorted(_REGISTERED)


def text_env_spec(id: str) -> TextEnvSpec:
    """The entry of a registered text environment.

    Raises:
        ValueError: no such id; names the nearest.
    """
    from paw_gym.naming import did_you_mean

    if id not in _REGISTERED:
        raise ValueError(
            f"There is no text environment {id!r}. "
            + (
                not_installed(id)
                or f"{did_you_mean(id, text_env_ids())} `paw envs` lists them all."
            )
        )
    return _REGISTERED[id]


def not_installed(id: str) -> str:
    """A hint for an environment whose package lies here but is not installed; empty where none does."""
    import tomllib

    for file in sorted([*Path().glob("pyproject.toml"), *Path().glob("*/pyproject.toml")]):
        try:
            project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
            plugins = project.get("entry-points", {}).get(PLUGIN_GROUP, {})
        except (OSError, ValueError, AttributeError):
            continue
        names = {str(name).lower() for name in plugins} if isinstance(plugins, dict) else set()
        wanted = id.lower().partition("/")[0].replace("_", "").partition("-v")[0]
        if wanted in {name.replace("_", "") for name in names}:
            return f"Its package lies here and is not installed: pip install -e {file.parent}"
    return ""


def make_text_env(id: str, **kwargs: Any) -> Any:
    """``gymnasium.make`` without the per-step checkers, which cost more than our environments do.

    Raises:
        ValueError: no such id (a clear one, with the nearest id), or an argument that it does not take.
    """
    import gymnasium as gym

    from paw_gym.constructors import registered_id

    env_id = registered_id(id)
    if ":" not in id:
        text_env_spec(env_id)
    try:
        return gym.make(env_id, disable_env_checker=True, **kwargs)
    except TypeError as error:
        refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if refused is None or refused[1] not in kwargs:
            raise
        raise ValueError(f"{env_id} has no setting {refused[1]!r}. ({error})") from error
