"""Several environments in one run: the entries of a list in ``env``, and each one's part in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import model_validator

from paw_gym.internals.naming import did_you_mean
from paw_gym.registration import class_defaults
from paw_train.settings.environment import EnvSettings
from paw_train.settings.ranges import AboveZero, Positive, Text
from paw_train.settings.secrets import asked_with


class MixedEnvSettings(EnvSettings):
    """One entry of a list in ``env``: everything that ``env`` has as a group, and its part in the run."""

    name: str = ""
    """name of the entry in metrics, evaluations and on the command line (``env.NAME.weight=2``), in lowercase
    letters, digits, ``-`` and ``_``; empty: the short form of ``id``, such as ``alfworld``"""
    weight: AboveZero = 1.0
    """the entry's share of an update's groups and of the warm start's episodes, relative to the other
    entries"""
    group_size: Positive | None = None
    """number of episodes for each of the entry's tasks; null: ``rollout.group_size``"""
    reward_scale: AboveZero = 1.0
    """factor that multiplies the entry's rewards, including penalties, before they become advantages; the
    adaptive weight and all metrics use the unscaled rewards. No effect where advantages are divided by a
    standard deviation"""
    normalize_advantages: bool = False
    """whether the entry's advantages in an update are divided by their own root mean square, so that they are
    as large as those of the other entries that set this"""
    split: Text | None = None
    """split of the entry's evaluation panel, instead of ``evaluation.split``; null: the environment's own
    held-out split"""
    selection_split: Text | None = None
    """split of the entry's selection panel, instead of ``evaluation.selection_split``; null: the
    environment's own"""

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
    group_size: int
    weight: float = 1.0
    reward_scale: float = 1.0
    normalize_advantages: bool = False


def entry_name(entry: Mapping[str, Any]) -> str:
    """The name of an entry of ``env``, nested plain values: its own, or the short form of its id."""
    env_id = str(entry.get("id") or EnvSettings().id)
    tail = env_id.rpartition("/")[2].lower()
    return str(entry.get("name") or tail.rpartition("-v")[0] or tail)


def read_mixture(entries: Sequence[Any]) -> tuple[MixedEnvSettings, ...]:
    """The entries of a list in ``env``.

    Raises:
        ValueError: the list is empty, an entry is not valid, or two have the same name.
    """
    if not entries:
        raise ValueError("env: the list of environments is empty.")
    found = tuple(
        entry
        if isinstance(entry, MixedEnvSettings)
        else MixedEnvSettings.read(entry, f"env.{_place(entry, number)}")
        for number, entry in enumerate(entries)
    )
    names = [entry.name for entry in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"env: two environments are called {twice!r}; give them a name each (name: ...)."
        )
    return found


def _place(entry: Any, number: int) -> str:
    return entry_name(entry) if isinstance(entry, Mapping) else str(number)


def member_of(entry: MixedEnvSettings, group_size: int) -> Member:
    """An entry with the values that it leaves to others.

    Args:
        entry: of the list.
        group_size: of ``rollout``.
    """
    selection, held_out = class_defaults(
        entry.id, asked_with(entry.id, entry.kwargs)
    ).held_out_splits
    return Member(
        entry.name,
        plain(entry),
        entry.split or held_out,
        entry.selection_split or selection,
        entry.group_size or group_size,
        entry.weight,
        entry.reward_scale,
        entry.normalize_advantages,
    )


def plain(entry: EnvSettings) -> EnvSettings:
    """The settings of an entry that every environment has."""
    return EnvSettings.read({key: getattr(entry, key) for key in EnvSettings.model_fields}, "env")


def entry_called(entries: Sequence[Any], name: str) -> dict[str, Any]:
    """The entry of a list in ``env``, nested plain values, that has this name.

    Raises:
        ValueError: there is none; names the nearest.
    """
    by_name = {entry_name(entry): entry for entry in entries if isinstance(entry, dict)}
    if name not in by_name:
        raise ValueError(
            f"env: {name!r} is none of the run's environments. {did_you_mean(name, by_name)}"
        )
    return by_name[name]


def choose_entry(data: dict[str, Any], name: str) -> None:
    """Makes settings with a list in ``env`` those of a run of one entry alone; changed in place.

    Its weight, scale and normalization weigh environments against each other, and are left out.

    Raises:
        ValueError: there is no such entry; names the nearest.
    """
    entry = read_mixture([entry_called(data["env"], name)])[0]
    member = member_of(entry, 1)
    data["env"] = plain(entry).model_dump()
    evaluation = data.setdefault("evaluation", {})
    evaluation |= {"split": member.split, "selection_split": member.selection_split}
    if entry.group_size is not None:
        data.setdefault("rollout", {})["group_size"] = entry.group_size
