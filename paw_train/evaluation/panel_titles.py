"""What a panel is called: a fixed panel's name, marked where it is a part of it or was changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.constructors import defaults_of
from paw_gym.core import TaskSet
from paw_train.environments import is_split, panel_name
from paw_train.evaluation.panels import (
    PANELS,
    Panel,
    make_panel,
    panel_spec,
    require_known_hash,
)
from paw_train.settings import EnvSettings

_CHANGED = " (changed)"
_REWARDS = ("reward", "invalid_penalty", "invalid_when")
"""settings that rewards depend on, beside the environment's arguments"""
_PART = re.compile(r"\[\d+\]$")
_PLACES = ("data_dir", "corpus")
"""arguments that locate data, and do not change the tasks"""


def panel_title(
    base: str | None,
    env: EnvSettings,
    split: str | None,
    size: int | None,
    seed: int | None,
    ids: Sequence[str],
) -> str:
    """The name of a panel.

    Args:
        base: the fixed panel that it was made from; ``None``: none.
        env: the environment.
        split: of the tasks.
        size: tasks that were asked for; ``None``: all.
        seed: of the sample; ``None``: the tasks are no sample.
        ids: of all tasks that the environment has.

    Returns:
        Such as ``sudoku/4x4[20] (changed)``: 20 tasks, in another environment, by another seed, or
        from others than the published tasks; with ``(invalid_penalty=5)`` behind it, other rewards.
    """
    own = EnvSettings()
    other = [f"{k}={getattr(env, k)}" for k in _REWARDS if getattr(env, k) != getattr(own, k)]
    rewards = f" ({', '.join(other)})" if other else ""
    count = len(ids) if size is None else min(size, len(ids))
    if base is None:
        return panel_name(env, split or "", count) + rewards
    spec = panel_spec(base)
    whole = count == (len(ids) if spec.count is None else spec.count)
    same = (
        seed == spec.seed
        and spec.is_published(ids)
        and _chosen(env.id, env.kwargs) == _chosen(env.id, spec.kwargs)
        and (split == spec.split or not is_split(env))
    )
    return base + ("" if whole else f"[{count}]") + ("" if same else _CHANGED) + rewards


def titled_panel(
    tasks: TaskSet, base: str | None, env: EnvSettings, split: str | None, size: int, seed: int
) -> Panel:
    """The panel of so many tasks, under its title. Arguments as of ``panel_title``.

    Raises:
        ValueError: a fixed panel's tasks are not those that its name has always meant.
    """
    title = panel_title(base, env, split, size, seed, tasks.ids)
    panel = make_panel(tasks, title, size, seed, panel_spec(base) if base else None)
    if base == title:
        require_known_hash(title, panel)
    return panel


def fixed_panel(title: str) -> str | None:
    """The fixed panel that a title speaks of; ``None``: none."""
    plain = _PART.sub("", title.partition(" (")[0])
    return plain if plain in PANELS else None


def _chosen(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that choose something: not the environment's defaults, nor where its data lies."""
    defaults = defaults_of(env_id)
    return {
        key: value
        for key, value in kwargs.items()
        if key not in _PLACES and (key not in defaults or value != defaults[key])
    }
