"""Registering text environments with Gymnasium: by string, so that it costs nothing until one is made.

``import paw_gym`` registers; so does ``gymnasium.make("paw_gym:paw_gym/ALFWorld-v0")``, which imports the
module before the colon. Other packages announce theirs with an entry point of the group ``paw_gym.envs``
that names a module (or a function) which calls ``register_text_env``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PLUGIN_GROUP = "paw_gym.envs"


@dataclass(frozen=True, slots=True)
class TextEnvSpec:
    """What ``paw envs`` shows of a registered text environment."""

    id: str
    description: str
    package: str


_REGISTERED: dict[str, TextEnvSpec] = {}
"""grows with Gymnasium's own registry, which has no room for a description"""

_OWN = {
    "paw_gym/ALFWorld-v0": (
        "paw_gym.envs.alfworld.env:ALFWorldEnv",
        "household tasks in six types: real games, or procedural ones with nothing to download",
    ),
    "paw_gym/SearchQA-v0": (
        "paw_gym.envs.search_qa.env:SearchQAEnv",
        "questions to answer with a search engine: seven benchmarks, or a made-up encyclopedia",
    ),
    "paw_gym/Tau2-v0": (
        "paw_gym.envs.tau2.env:Tau2Env",
        "customer service by a policy, with tools: the text domains of tau2-bench",
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
    max_steps: int = 50,
    description: str = "",
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
        id: ``namespace/Name-vN``; registering an id again replaces it.
        entry_point: the class, its string, or the generator function.
        tasks: the tasks of a generator function (``Task`` objects).
        max_steps: step budget of a generator function.
        description: one line for ``paw envs``; by default the first line of the docstring.
        kwargs: defaults of the class's keyword arguments.

    Returns:
        The entry point, so that it works as a decorator.

    Raises:
        ValueError: a generator function without tasks.
    """
    if entry_point is None:

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register_text_env(
                id,
                function,
                tasks=tasks,
                max_steps=max_steps,
                description=description,
                **kwargs,
            )
            return function

        return decorate
    target: Any = entry_point
    if callable(entry_point) and not isinstance(entry_point, type):
        from paw_gym.functional import GeneratorEnvFactory

        target = GeneratorEnvFactory(id, entry_point, tasks, max_steps)
    doc = "" if isinstance(entry_point, str) else (entry_point.__doc__ or "").strip()
    package = entry_point if isinstance(entry_point, str) else entry_point.__module__
    _REGISTERED[id] = TextEnvSpec(
        id, description or (doc.splitlines() or [""])[0], package.split(":")[0].split(".")[0]
    )
    _register(id, target, kwargs)
    return entry_point


def _register(id: str, entry_point: Any, kwargs: dict[str, Any]) -> None:
    from gymnasium.envs.registration import register, registry

    registry.pop(id, None)
    # the environment counts its own steps and refuses one without a reset: the wrappers that do so
    # (TimeLimit, OrderEnforcing) keep state that restore_state does not reach
    register(id, entry_point=entry_point, kwargs=kwargs, order_enforce=False)


def register_all() -> None:
    """Registers the environments of this package and of installed plug-ins; calling it again is harmless."""
    for id, (entry_point, description) in {**_OWN, **_CLIENTS}.items():
        if id not in _REGISTERED:
            register_text_env(id, entry_point, description=description)
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
    """What is known of a registered text environment.

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
    """What to do about an environment whose package lies here but is not installed; empty: none does."""
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
        ValueError: no such id (a clear one, with the nearest id).
    """
    import gymnasium as gym

    if ":" not in id:
        text_env_spec(id)
    return gym.make(id, disable_env_checker=True, **kwargs)
