"""Settings that a file brings: of a run, a result, an adapter or somebody's episodes.

Such a file chooses values. It locates nothing: no module is imported, no path opened, no address asked and no
environment variable read because a file names it. All of these come from the command line or from the
user's own recipe.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.data import dataset_names, default_folder
from paw_gym.registration import text_env_ids
from paw_train.settings.env import EnvSettings, entry_called, entry_name, recorded_id
from paw_train.settings.recipes import apply_override

_ADDRESS = re.compile(r"\w://|^\s*(//|\\\\)")
_MODULE = re.compile(r"^\s*[^\W\d][\w.]*:[^\W\d]")
_PATH = re.compile(r"[/\\~]|^\s*\.+\s*$|\.[A-Za-z]\w*\s*$")
_OF_A_PLACE = re.compile(
    r"(^|_)(dir|path|file|folder|root|url|uri|host|address|server|socket|token|secret|password|key"
    r"|credentials?|corpus|index|module|import)$",
    re.IGNORECASE,
)
"""settings that locate something by their name, whatever the value looks like"""
_TEXTS = ("goals", "prices")
"""arguments that hold texts of their own if they are a list or JSON, else a name or a file"""


def recorded_settings(
    recorded: Mapping[str, Any], where: str, overrides: Sequence[str], uses: Sequence[str]
) -> dict[str, Any]:
    """The settings that a command takes from those that a run recorded, as nested plain values.

    Args:
        overrides: ``key=value`` of this command line, which replace what the file says.
        uses: dotted names of the settings and groups that the command needs.
    """
    data, given = dict(recorded), [override.partition("=")[0] for override in overrides]
    if isinstance(data.get("env"), list):
        chosen = next((o.removeprefix("env=") for o in overrides if o.startswith("env=")), "")
        if chosen and chosen[:1] not in "[{":
            data["env"] = [entry_called(data["env"], chosen.strip())]
            given.remove("env")
            given += [f"env.{chosen.strip()}.{name[4:]}" for name in given if name[:4] == "env."]
    kept: dict[str, Any] = {}
    for name in uses:
        *groups, last = name.split(".")
        source, place = data, kept
        for group in groups:
            source = source[group] if isinstance(source.get(group), dict) else {}
            place = place.setdefault(group, {})
        if last in source:
            place[last] = source[last]
    return dict(_harmless(kept, "", where, given))


def recorded_env(values: Any, where: str, overrides: Sequence[str] = ()) -> EnvSettings:
    """The environment that a file describes as ``env`` of a recipe.

    Args:
        overrides: arguments that this command line gives: ``env.kwargs.KEY=VALUE``.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} does not describe its environment.")
    given = [override.partition("=")[0] for override in overrides]
    if other := [name for name in given if not name.startswith("env.kwargs.")]:
        raise ValueError(
            f"{other[0]}: only the environment's arguments are given here, env.kwargs.KEY=VALUE."
        )
    data = {"env": _harmless(values, "env", where, given)}
    for override in overrides:
        apply_override(data, override)
    return EnvSettings.read(data["env"], "env")


def located(key: str, value: Any) -> str | None:
    """The kind of thing that a setting locates, in words; ``None``: nothing."""
    if not isinstance(value, str) or value in text_env_ids():
        return None
    if value.lstrip().startswith("env:"):
        return "an environment variable"
    if _ADDRESS.search(value):
        return "an address"
    if _MODULE.search(value):
        return "a module"
    if _OF_A_PLACE.search(key) or _PATH.search(value):
        # where `paw data download` puts a data set, and where it is found without being named
        own = key == "data_dir" and value in {str(default_folder(d)) for d in dataset_names()}
        return None if own else "a path"
    return None


def _harmless(values: Any, name: str, where: str, given: Sequence[str]) -> Any:
    """The values without those that locate something and are given on the command line."""
    found: list[tuple[str, str, str]] = []
    kept = _walked(values, name, where, given, found)
    if not found:
        return kept
    first, what, value = found[0]
    # an address or a variable is not copied out of the file
    advice = " ".join(
        f"{name}={shlex.quote(value) if what == 'a path' and value.isprintable() else '...'}"
        for name, what, value in found
    )
    raise ValueError(
        f"{where} names {what} in {first} ({value!r:.200}), and nothing is opened, asked or imported because "
        f"a file names it. If it is right, give it yourself: {advice}"
    )


def _walked(
    value: Any, name: str, where: str, given: Sequence[str], found: list[tuple[str, str, str]]
) -> Any:
    """A value without the parts that are given; other parts that locate something go into ``found``."""
    if isinstance(value, Mapping):
        kept = {}
        for key, inside in value.items():
            below = f"{name}.{key}".lstrip(".")
            is_given = any(f"{below}.".startswith(f"{one}.") for one in given)
            if key == "id" and name.partition(".")[0] == "env" and "kwargs" not in name:
                env_id = str(inside)
                kept[key] = env_id.rpartition(":")[2] if is_given else recorded_id(env_id, where)
            elif not is_given:
                if located("", str(key)):
                    found.append((name, "a path", str(key)))
                kept[key] = _walked(inside, below, where, given, found)
        return kept
    key = name.rpartition(".")[2]
    if isinstance(value, list | tuple):
        if key in _TEXTS:
            return value
        entries = name == "env" and all(isinstance(one, Mapping) for one in value)
        names = [f"env.{entry_name(one)}" if entries else name for one in value]
        return [_walked(e, n, where, given, found) for e, n in zip(value, names, strict=True)]
    is_json = key in _TEXTS and str(value).lstrip().startswith(("[", "{"))
    if not is_json and (what := located(key, value)):
        found.append((name, what, value))
    return value
