"""Arguments that several commands share: an environment's name, and its settings as ``key=value``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

ENVIRONMENTS, TRAINING, DATA = "Environments", "Training", "Episodes as data"
"""headings of the commands in ``paw --help``"""

EnvName = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A registered id, or its name alone ([cyan]ALFWorld[/cyan]), or "
        "[cyan]module:id[/cyan] to import a module first.",
    ),
]
EnvSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--kw",
        "-k",
        metavar="KEY=VALUE",
        help="Setting of the environment; may be repeated.",
    ),
]

Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, installed or a file of this folder; it registers the environment.",
    ),
]


def import_modules(names: Sequence[str] | None) -> None:
    """Imports the modules that ``--import`` names."""
    from paw_gym.internals.constructors import import_named

    for name in names or []:
        import_named(name)


def full_env_id(name: str) -> str:
    """The id that a name means: the id itself, or one that ends in it, whatever the case.

    ``module:id`` stays as it is; the module is imported.
    """
    from paw_gym.internals.constructors import registered_id
    from paw_gym.registration import text_env_ids, text_env_spec

    if ":" in name:
        registered_id(name)
        return name
    ids = text_env_ids()
    wanted = name.lower()
    found: list[str] = [] if name in ids else [i for i in ids if wanted in _short_names(i)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} could be {' or '.join(found)}: give the full id.")
    text_env_spec(name)  # for an unknown id it says which may have been meant
    return name


def _short_names(env_id: str) -> set[str]:
    tail = env_id.lower().rpartition("/")[2]
    return {env_id.lower(), tail, tail.rpartition("-v")[0] or tail}


def parse_settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """``key=value`` pairs as a dictionary; values are read as YAML (numbers, true, null, lists)."""
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise ValueError(f"Expected key=value, got {pair!r} (for example --kw split=train).")
        try:
            settings[key] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError, ValueError):  # an impossible date is a ValueError
            settings[key] = value
    return settings


def environment_of(name: str, pairs: Sequence[str] | None) -> tuple[str, dict[str, Any]]:
    """The id of an environment and the settings for it, from the command line."""
    from paw_gym.internals.constructors import check_arguments

    env_id, settings = full_env_id(name), parse_settings(pairs)
    check_arguments(env_id, settings)
    return env_id, settings
