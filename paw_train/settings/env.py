"""Settings of the environments of a run, and of the agent's interface to them.

A run records its settings, so they hold the name of a secret's variable, never the secret:
``env.kwargs.token=env:MY_TOKEN`` stands for the value of the variable ``MY_TOKEN``, which is looked up
when the environment is made, or a server is asked about it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from paw_gym.internals.constructors import names_another
from paw_gym.internals.naming import require_choice
from paw_gym.registration import class_defaults, text_env_ids
from paw_train.settings.base import AboveZero, Count, Group, Number, Text

_NAMED = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|credentials?)$", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"://[^/\s@]+:[^/\s@]*@")
_VARIABLE = "env:"


def refuse_secrets(values: Mapping[str, Any], where: str) -> None:
    """Raises ``ValueError`` for a secret among the values; the message does not repeat it."""
    for key, value in values.items():
        name = f"{where}.{key}"
        if isinstance(value, Mapping):
            refuse_secrets(value, name)
        elif not isinstance(value, str) or value.startswith(_VARIABLE):
            continue
        elif _NAMED.search(str(key)) or _IN_ADDRESS.search(value):
            raise ValueError(
                f"{name} holds a secret, and a run writes its settings to its record. Put the value "
                f"into an environment variable and give its name: {name}=env:NAME."
            )


def with_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with ``env:NAME`` replaced by what that environment variable holds."""
    return {key: _resolved(str(key), value) for key, value in values.items()}


def asked_with(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which a server is asked about an environment, with their secrets; else none."""
    return with_secrets(kwargs) if names_another(env_id, kwargs) else {}


def recorded_id(env_id: str, where: str) -> str:
    """The registered id of the environment that a file names; no module in that name is imported.

    Raises:
        ValueError: no such environment is registered here; says how to import its module.
    """
    module, _, plain = env_id.rpartition(":")
    if plain not in text_env_ids():
        raise ValueError(
            f"{where} is of the environment {env_id!r}, which is not registered here, and no module is "
            f"imported because a file names it. If it is yours, add --import {module or 'MODULE'} "
            "(in Python: import it first)."
        )
    return plain


def _resolved(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_secrets(value)
    if not isinstance(value, str) or not value.startswith(_VARIABLE):
        return value
    variable = value.removeprefix(_VARIABLE)
    if variable not in os.environ:
        raise ValueError(f"{key}={value}: there is no environment variable {variable!r}.")
    return os.environ[variable]


class EnvSettings(Group):
    """The environment and the agent's interface to it."""

    id: Text = "paw_gym/ALFWorld-v0"
    """registered id of the environment"""
    kwargs: dict[str, Any] = {}
    """arguments of the environment, such as ``data_dir``, except ``split`` (which ``train_split`` and
    ``evaluation.split`` set); a secret is given as ``env:NAME``, where ``NAME`` is the environment
    variable that contains it"""
    train_kwargs: dict[str, Any] = {}
    """additional arguments of the environment in training's rollouts only, such as a smaller ``max_steps``"""
    train_split: Text = "train"
    """split that training samples its tasks from"""
    template: str | None = None
    """prompt template: a built-in name or a ``.toml`` file; null: the environment's own"""
    mode: Literal["window", "conversation"] = "window"
    """``window``: each prompt is complete in itself; ``conversation``: one growing dialogue per episode"""
    history_length: Count | None = 2
    """number of past (observation, action) pairs in a window-mode prompt; null: all"""
    reward: Literal["agent", "environment"] = "agent"
    """``agent``: the reward that the environment declares for agents, such as 10 on success and 0 otherwise;
    ``environment``: its own, such as WebShop's score in [0, 1], which rewards partial matches"""
    invalid_penalty: Number | None = None
    """reward added for an invalid response; null: the environment's own (-0.1 for ALFWorld)"""
    invalid_when: Literal["rejected", "malformed"] = "rejected"
    """which responses are invalid: ``rejected``, those that are malformed or whose action the environment
    does not accept; ``malformed``, only those without the required tags (the paper, GiGPO's code)"""
    max_return: AboveZero | None = None
    """R_max of the adaptive weight; null: the environment's success reward"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "split" in self.kwargs or "split" in self.train_kwargs:
            raise ValueError(
                "env.kwargs.split: a split is chosen by what uses it: env.train_split for training, "
                "evaluation.split for evaluation, evaluation.selection_split for choosing checkpoints."
            )
        refuse_secrets(self.kwargs, "env.kwargs")
        refuse_secrets(self.train_kwargs, "env.train_kwargs")
        return self


class MixedEnvSettings(EnvSettings):
    """One entry of a list in ``env``: everything that ``env`` has as a group, and its part in the run.

    Its panels come from the environment's own held-out splits.
    """

    name: str = ""
    """name of the entry in metrics, evaluations and on the command line (``env.NAME.weight=2``), in lowercase
    letters, digits, ``-`` and ``_``; empty: the short form of ``id``, such as ``alfworld``"""
    weight: AboveZero = 1.0
    """the entry's share of an update's groups and of the warm start's episodes, relative to the other
    entries"""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.get("name"):
            return {**data, "name": entry_name(data)}
        return data

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        plain = self.name.replace("-", "").replace("_", "")
        if not (plain.isascii() and plain.isalnum() and plain == plain.lower()):
            raise ValueError(
                f"env: the name of an entry has lower-case letters, digits, - and _, got {self.name!r}."
            )
        return self


@dataclass(frozen=True, slots=True)
class Member:
    """One environment of a run, with everything that may differ between the environments of a run."""

    name: str
    env: EnvSettings
    split: str
    """of its evaluation panel"""
    selection_split: str
    """of its selection panel"""
    weight: float = 1.0


def entry_name(entry: Mapping[str, Any]) -> str:
    """The name of an entry of ``env``, nested plain values: its own, or the short form of its id."""
    env_id = str(entry.get("id") or EnvSettings().id)
    tail = env_id.rpartition("/")[2].lower()
    return str(entry.get("name") or tail.rpartition("-v")[0] or tail)


def read_mixture(entries: Sequence[Any]) -> tuple[MixedEnvSettings, ...]:
    if not entries:
        raise ValueError("env: the list of environments is empty.")
    wheres = [entry_name(e) if isinstance(e, Mapping) else n for n, e in enumerate(entries)]
    found = [
        entry
        if isinstance(entry, MixedEnvSettings)
        else MixedEnvSettings.read(entry, f"env.{where}")
        for where, entry in zip(wheres, entries, strict=True)
    ]
    names = [entry.name for entry in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"env: two environments are called {twice!r}; give them a name each (name: ...)."
        )
    return tuple(found)


def member_of(entry: MixedEnvSettings) -> Member:
    """An entry with the values that it leaves to its environment."""
    selection, held_out = class_defaults(
        entry.id, asked_with(entry.id, entry.kwargs)
    ).held_out_splits
    return Member(entry.name, plain(entry), held_out, selection, entry.weight)


def plain(entry: EnvSettings) -> EnvSettings:
    """The settings of an entry that every environment has."""
    return EnvSettings.read({key: getattr(entry, key) for key in EnvSettings.model_fields}, "env")


def entry_called(entries: Sequence[Any], name: str) -> dict[str, Any]:
    """The entry of a list in ``env``, nested plain values, that has this name."""
    by_name = {entry_name(entry): entry for entry in entries if isinstance(entry, dict)}
    require_choice("environment of the run", name, by_name)
    return by_name[name]


def choose_entry(data: dict[str, Any], name: str) -> None:
    """Turns settings with a list in ``env`` into those of one entry, without its weight; in place."""
    entry = read_mixture([entry_called(data["env"], name)])[0]
    member = member_of(entry)
    data["env"] = plain(entry).model_dump()
    evaluation = data["evaluation"] = data.get("evaluation") or {}
    evaluation |= {"split": member.split, "selection_split": member.selection_split}
