"""Settings that were written for one environment, used with another.

A recipe has arguments, splits and limits for its own environment. ``env.id=...`` on the command line
replaces them with the defaults of the other environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.internals.constructors import creator_of, has_splits
from paw_gym.registration import class_defaults, text_env_spec
from paw_train.settings.env import asked_with

BELONGING = (
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


def change_environment(data: dict[str, Any], given: Mapping[str, Any], own_id: str) -> list[str]:
    """Makes nested settings ready for the environment that the command line names.

    Args:
        data: settings of a recipe or a run; changed in place.
        given: those of the command line, nested.

    Returns:
        Dotted names of the settings that were left out; empty: it is the same environment.
    """
    wanted = _value(given, "env.id")
    if not isinstance(wanted, str) or isinstance(data.get("env"), list):
        return []  # of a list each entry has its own
    known = str(_value(data, "env.id") or own_id)
    stated = _value(given, "env.kwargs")
    kwargs = stated if isinstance(stated, dict) else {}  # anything else is refused later
    another = kwargs.get("remote_id") not in (None, _value(data, "env.kwargs.remote_id"))
    if wanted.rpartition(":")[2] == known.rpartition(":")[2] and not another:
        return []
    if creator_of(wanted) is None:
        text_env_spec(wanted)
    arguments = asked_with(wanted, kwargs)
    of = class_defaults(wanted, arguments)
    own: dict[str, Any] = {"env.history_length": of.agent.history_length}
    if has_splits(wanted, arguments):
        own["evaluation.selection_split"], own["evaluation.split"] = of.held_out_splits
    if (_value(given, "model.path") or _value(data, "model.path")) is None:
        # the settings that a recipe has for its small model are needed for this environment's too
        small = {"env.template": of.small_template, "rollout.max_response_tokens": _RESPONSE_TOKENS}
        own |= {key: new for key, new in small.items() if _value(data, key) is not None}
    if _value(given, "cloning.episodes") is None and _value(given, "cloning.steps") is None:
        own["cloning.episodes_per_task"] = _EPISODES_PER_TASK
    belonging = [*BELONGING]
    if _value(data, "model.scratch.tokenizer") == "entities":
        belonging.append("model.scratch.tokenizer")  # numbered names are one world's language
    left_out = [name for key in belonging for name in _take_out(data, key)]
    for name, value in own.items():
        group, _, key = name.partition(".")
        data.setdefault(group, {})[key] = value
    return left_out


def refuse_splits(given: Mapping[str, Any], env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Looks whether the command line names a split of an environment that has none."""
    named = next((name for name in _SPLITS if _value(given, name) is not None), None)
    if named is not None and not has_splits(env_id, asked_with(env_id, kwargs)):
        raise ValueError(
            f"{named}={_value(given, named)}: {env_id} has no splits, all its tasks are in one set. Leave "
            "the setting out, or let the environment take an argument `split`."
        )


def explain(left_out: list[str], env_id: str, of: str) -> str:
    """A sentence about what ``change_environment`` left out."""
    return (
        f"{of} is written for another environment: {env_id} uses its own defaults for "
        f"{', '.join(left_out)}."
    )


def _value(data: Mapping[str, Any], name: str) -> Any:
    found: Any = data
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _take_out(data: Mapping[str, Any], name: str) -> list[str]:
    """Removes a setting, and names it: of a group, the members."""
    group, _, key = name.rpartition(".")
    inside = _value(data, group)
    if not isinstance(inside, dict) or key not in inside:
        return []
    value = inside.pop(key)
    return [f"{name}.{k}" for k in value] if isinstance(value, dict) else [name]
