"""Settings from a recipe (a YAML file, which may have a base) and ``key=value`` on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import yaml

from paw_gym.internals.constructors import creator_of, has_splits
from paw_gym.internals.files import user_path
from paw_gym.internals.naming import did_you_mean
from paw_gym.registration import class_defaults, text_env_spec
from paw_train.settings.base import value_at
from paw_train.settings.env import EnvSettings, asked_with, choose_entry, entry_called
from paw_train.settings.run import Settings

Say = Callable[[str], None]
"""called with a sentence for the user"""
Kind = Literal["recipe", "grid"]
"""``grid``: what ``paw compare`` runs"""
PUBLISHED = "published.yaml"
"""the table whose rows are recipes"""
_SUFFIXES = (".yaml", ".yml")
_BELONGING = (
    *("env.kwargs", "env.train_kwargs", "env.train_split", "env.template", "env.history_length"),
    *("env.reward", "env.invalid_penalty", "env.max_return"),
    *("evaluation.split", "evaluation.selection_split", "rollout.max_response_tokens"),
    "model.scratch.spell_unknown",
)
"""settings (dotted) that belong to one environment"""
_SPLITS = ("env.train_split", "evaluation.split", "evaluation.selection_split")
_EPISODES_PER_TASK = 16
"""expert episodes per task that a warm start on another environment takes, unless ``cloning`` is given"""
_RESPONSE_TOKENS = 48
"""longest response of a model trained from scratch: the most that a recipe of the project gives one"""


def load_settings(
    recipe: str | Path, overrides: Sequence[str] = (), say: Say | None = None
) -> Settings:
    """Settings from a recipe and ``key=value`` overrides (``optimizer.lr=1e-4``).

    An ``env.id`` other than the recipe's leaves out the recipe's settings for its own environment.

    Args:
        recipe: the name of a recipe that comes with the project, or a ``.yaml`` path.
        say: called with a sentence about settings that were left out.

    Raises:
        ValueError: unknown recipe, key or environment (names the nearest), or a value of the wrong
            type or out of its range.
    """
    name = recipe_name(recipe)
    data = read_recipe(recipe)
    data.setdefault("name", name)
    return overridden(data, overrides, f"The recipe {name}", say)


def overridden(
    data: dict[str, Any], overrides: Sequence[str], of: str, say: Say | None = None
) -> Settings:
    """Settings from nested values (changed in place) and ``key=value`` overrides; see ``load_settings``."""
    overrides = choose_environment(data, overrides)
    given: dict[str, Any] = {}
    for override in overrides:
        apply_override(given, override)
    left_out = _change_environment(data, given, EnvSettings().id)
    if left_out and say is not None:
        say(
            f"{of} is written for another environment: {given['env']['id']} uses its own defaults for "
            f"{', '.join(left_out)}."
        )
    world_model = given.get("world_model")
    if isinstance(world_model, dict) and "preset" in world_model:
        # the recipe's value would take precedence: grpo+paw with preset=off would still be grpo+paw
        _take_out(data, "world_model.enabled")
    for override in overrides:
        apply_override(data, override)
    settings = Settings.read(data)
    named = next((name for name in _SPLITS if value_at(given, name) is not None), None)
    env = settings.env
    if (
        named is not None
        and isinstance(env, EnvSettings)
        and not has_splits(env.id, asked_with(env.id, env.kwargs))
    ):
        raise ValueError(
            f"{named}={value_at(given, named)}: {env.id} has no splits, all its tasks are in one set. Leave "
            "the setting out, or let the environment take an argument `split`."
        )
    return settings


def choose_environment(data: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Applies ``env=NAME`` to settings with a list in ``env``: they become those of this entry alone."""
    left = []
    for override in overrides:
        chosen = override.removeprefix("env=").strip()
        if isinstance(data.get("env"), list) and chosen != override and chosen[:1] not in "[{":
            choose_entry(data, chosen)
        else:
            left.append(override)
    return left


def read_recipe(recipe: str | Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe's nested values, on top of those of the recipe that its ``base`` names, if any."""
    name = recipe_name(recipe)
    if name == str(recipe) and name not in _files("recipe") and name in (rows := published_rows()):
        return rows[name]
    path = find_recipe(recipe)
    if path in above:
        chain = " -> ".join(p.stem for p in (*above, path))
        raise ValueError(f"Recipes are each other's base: {chain}.")
    data = read_yaml(path.read_bytes(), f"Recipe {path.name}") or {}
    if not isinstance(data, dict):
        raise ValueError(
            f"Recipe {path.name} holds a {type(data).__name__}; expected keys and values."
        )
    base = data.pop("base", None)
    if base is None:
        return data
    beside = path.parent / str(base)
    below = read_recipe(beside if beside.is_file() else str(base), (*above, path))
    below.pop("name", None)
    return _merged(below, data)


def published_rows() -> dict[str, dict[str, Any]]:
    """The rows of the published tables by name: each row's settings on top of those of its set-up."""
    table = _table()

    def settings(entry: dict[str, Any]) -> dict[str, Any]:
        own = {key: value for key, value in entry.items() if key not in ("base", "published")}
        return _merged(settings(table["setups"][entry["base"]]), own) if "base" in entry else own

    return {name: settings(row) for name, row in table["rows"].items()}


def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml((_folder("recipe") / PUBLISHED).read_bytes(), PUBLISHED)
    return table


def read_yaml(text: str | bytes, what: str) -> Any:
    """The plain values in a YAML text, or in the UTF-8 bytes of one; dates are texts."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        if text[:1] in '{["':  # JSON, which YAML reads nearly the same
            with suppress(ValueError):
                return json.loads(text)
        # an alias to what contains it would never end
        return json.loads(json.dumps(_OnceEach(text).get_single_data(), default=str))
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{what} is not valid YAML: {error}") from error


class _OnceEach(yaml.SafeLoader):
    """Refuses a key that stands twice: the first of its values would be lost."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if names.count(key.value) > 1:
                problem = f"the key {key.value} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return node


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        groups = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merged(dict(old or {}), value) if groups else value
    return merged


def descriptions(kind: Kind = "recipe") -> dict[str, str]:
    """By name, in order: the first sentence of a file's opening comment, or what a row's paper reports."""
    rows = _table()["rows"] if kind == "recipe" else {}
    published = {n: f"Published, not run here: {row['published']}" for n, row in rows.items()}
    names = published | {name: _opening(path) for name, path in _files(kind).items()}
    return dict(sorted(names.items()))


def _opening(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"(?<=[.?])\s+(?=[A-Z`])", text, maxsplit=1)[0]


def find_recipe(recipe: str | Path, kind: Kind = "recipe") -> Path:
    """The file of a recipe, or of a grid."""
    path = user_path(recipe)
    if path.suffix in _SUFFIXES:
        if not path.is_file():
            raise ValueError(f"There is no {kind} file {str(recipe)!r}.")
        return path
    if (found := _files(kind).get(str(recipe))) is None:
        nearest = did_you_mean(str(recipe), recipe_names(kind))
        raise ValueError(f"There is no {kind} {str(recipe)!r}. {nearest}")
    return found


def recipe_name(recipe: str | Path) -> str:
    """The name of a recipe that is given by its name or its path."""
    path = Path(recipe)
    return path.stem if path.suffix in _SUFFIXES else str(recipe)


def recipe_names(kind: Kind = "recipe") -> list[str]:
    return sorted({*_files(kind), *(_table()["rows"] if kind == "recipe" else ())})


def _files(kind: Kind) -> dict[str, Path]:
    return {path.stem: path for path in _folder(kind).glob("*.yaml") if path.name != PUBLISHED}


def _folder(kind: Kind) -> Path:
    """The folder in the installed package, else the one in the repository."""
    package = Path(__file__).resolve().parents[1]
    folder = {"recipe": "recipes", "grid": "recipes/compare"}[kind]
    return package / folder if (package / folder).is_dir() else package.parent / folder


def read_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts by key; values are read as YAML."""
    values = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ValueError(f"Expected key=value, got {pair!r} (for example optimizer.lr=1e-4).")
        values[key] = read_yaml(value, key)
    return values


def apply_override(data: dict[str, Any], override: str) -> None:
    """Puts ``group.key=value``, read as YAML, into settings; a listed environment goes by its name."""
    ((key, value),) = read_pairs([override]).items()
    *path, last = key.split(".")
    place: Any = data
    for part in path:
        place = entry_called(place, part) if isinstance(place, list) else place.setdefault(part, {})
        if not isinstance(place, dict | list):
            raise ValueError(f"{key}: {part!r} is a value, not a group of settings.")
    if isinstance(place, list):
        entry_called(place, last)
        raise ValueError(
            f"{key} is one of several environments: give a setting of it, {key}.KEY=..."
        )
    place[last] = value


# --- settings written for one environment, used with another -----------------------------------------


def _change_environment(data: dict[str, Any], given: Mapping[str, Any], own_id: str) -> list[str]:
    """Changes settings to another environment; returns the dotted names of those that were left out."""
    wanted = value_at(given, "env.id")
    if not isinstance(wanted, str) or isinstance(data.get("env"), list):
        return []  # in a list each entry has its own
    known = str(value_at(data, "env.id") or own_id)
    stated = value_at(given, "env.kwargs")
    kwargs = stated if isinstance(stated, dict) else {}  # anything else is refused later
    another = kwargs.get("remote_id") not in (None, value_at(data, "env.kwargs.remote_id"))
    if wanted.rpartition(":")[2] == known.rpartition(":")[2] and not another:
        return []
    if creator_of(wanted) is None:
        text_env_spec(wanted)
    arguments = asked_with(wanted, kwargs)
    of = class_defaults(wanted, arguments)
    own: dict[str, Any] = {"env.history_length": of.agent.history_length}
    if has_splits(wanted, arguments):
        own["evaluation.selection_split"], own["evaluation.split"] = of.held_out_splits
    if (value_at(given, "model.path") or value_at(data, "model.path")) is None:
        # the settings that a recipe has for its small model are needed for this environment's too
        small = {"env.template": of.small_template, "rollout.max_response_tokens": _RESPONSE_TOKENS}
        own |= {key: new for key, new in small.items() if value_at(data, key) is not None}
    if value_at(given, "cloning.episodes") is None and value_at(given, "cloning.steps") is None:
        own["cloning.episodes_per_task"] = _EPISODES_PER_TASK
    left_out = [name for key in _BELONGING for name in _take_out(data, key)]
    for name, value in own.items():
        apply_override(data, f"{name}={json.dumps(value)}")
    return left_out


def _take_out(data: Mapping[str, Any], name: str) -> list[str]:
    """Removes a setting, and returns its name; for a group, those of its members."""
    group, _, key = name.rpartition(".")
    inside = value_at(data, group)
    if not isinstance(inside, dict) or key not in inside:
        return []
    value = inside.pop(key)
    return [f"{name}.{k}" for k in value] if isinstance(value, dict) else [name]
