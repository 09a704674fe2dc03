"""A grid of arms (methods) x seeds over one recipe, and the runs that make it up."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paw_gym.internals.naming import require_choice
from paw_train.environments import allowed_warm_start
from paw_train.settings import (
    Settings,
    find_recipe,
    load_settings,
    read_yaml,
    recipe_name,
    recipe_names,
)
from paw_train.settings.base import ARGUMENTS, flatten
from paw_train.settings.recipes import read_pairs
from paw_train.settings.world_model import WorldModelSettings

_KEYS = (
    *("recipe", "seeds", "overrides", "baseline", "primary", "against", "arms", "name"),
    "description",
)
_PRESET = "world_model.preset"


_SEED = '"{seed}"'
"""a value that stands for the run's seed, in JSON"""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid."""

    arm: str
    seed: int
    overrides: tuple[str, ...]
    """``key=value``, in the order in which they are applied"""
    settings: Settings
    """all settings of the run"""

    @property
    def name(self) -> str:
        return run_name(self.arm, self.seed)

    @cached_property
    def as_run(self) -> Settings:
        """The settings as the run uses them; makes its environment."""
        return allowed_warm_start(self.settings, lambda sentence: None)


@dataclass(frozen=True)
class Grid:
    """Methods x seeds over one recipe."""

    name: str
    """the name of the comparison's folder"""
    recipe: str
    """a recipe's name, or the path of a ``.yaml`` file"""
    seeds: tuple[int, ...]
    arms: Mapping[str, Mapping[str, Any]]
    """the settings in which each method differs from the others, by dotted key"""
    baseline: str
    """the arm that paired differences are measured against"""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """settings of all arms that differ from the recipe's, by dotted key"""
    against: Mapping[str, str] = field(default_factory=dict)
    """arms whose difference is measured against an arm other than the baseline"""
    description: str = ""
    """the question that it answers, for the page"""
    primary: str | None = None
    """the arm whose difference was named beforehand as the one that decides; the others are exploratory"""

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError("A comparison needs arms: `arms: {grpo: {}, ...}` or --arm NAME:...")
        folders: dict[str, str] = {}
        for name in self.arms:
            other = folders.setdefault(run_name(name, 0), name)
            if other != name:
                raise ValueError(
                    f"Arms {other!r} and {name!r} would share a folder; rename one of them."
                )
        named = [self.baseline, *(name for pair in self.against.items() for name in pair)]
        self.check_arms([*named, *([] if self.primary is None else [self.primary])])
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: expected different whole numbers, got {list(self.seeds)}.")

    def runs(self, out: str) -> list[PlannedRun]:
        """Every run, seeds outermost, so that whole seeds are complete early."""
        folder = Path(out) / self.name
        return [self._run(arm, seed, folder) for seed in self.seeds for arm in self.arms]

    def _run(self, arm: str, seed: int, folder: Path) -> PlannedRun:
        # loads torch, which listing grids for shell completion must not do
        from paw_train.algorithms.estimator import require_registered

        values: dict[str, Any] = {"threads": 1, **self.overrides, **self.arms[arm]}
        values |= {"seed": seed, "out": str(folder), "name": run_name(arm, seed)}
        values.setdefault("warm_starts", str(folder / "warm-starts"))
        overrides = tuple(
            f"{key}={json.dumps(value)}".replace(_SEED, str(seed)) for key, value in values.items()
        )
        try:
            settings = load_settings(self.recipe, overrides)
            require_registered(settings)
        except ValueError as error:
            raise ValueError(f"Arm {arm!r}: {error}") from None
        if settings.evaluation.tasks < 1:
            raise ValueError(
                f"Arm {arm!r}: evaluation.tasks is 0; a comparison needs the evaluation after RL."
            )
        return PlannedRun(arm, seed, overrides, settings)

    def with_seeds(self, seeds: Sequence[int]) -> Grid:
        return dataclasses.replace(self, seeds=tuple(dict.fromkeys([*self.seeds, *seeds])))

    def check_arms(self, names: Sequence[str]) -> None:
        """Raises ``ValueError`` for a name that is not an arm; suggests the nearest."""
        for name in names:
            require_choice("arm", name, list(self.arms))

    def baselines(self) -> dict[str, str]:
        """For each arm, in order, the one it is measured against: itself for the baseline."""
        return {arm: self.against.get(arm, self.baseline) for arm in self.arms}


def run_name(arm: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', arm).strip('-')}-seed{seed}"


def load_grid(name: str | Path) -> Grid:
    """A grid from a file.

    Args:
        name: a name from ``recipes/compare/``, or a ``.yaml`` path. A recipe that the file names by
            a path is looked up from the working directory, then from the file's folder.
    """
    path = _file(name)
    data = read_yaml(path.read_bytes(), f"Grid {path.name}")
    if not isinstance(data, dict):
        raise ValueError(f"Grid {path.name}: expected keys and values, got {data!r}.")
    for key in data:
        require_choice(f"key of grid {path.name}", key, _KEYS)
    arms = data.get("arms")
    if not isinstance(arms, dict) or not arms:
        raise ValueError(f"Grid {path.name}: `arms` names the methods and their settings.")
    if "recipe" not in data:
        raise ValueError(f"Grid {path.name}: `recipe` is missing: the recipe that all arms share.")
    recipe = str(data["recipe"])
    beside = path.parent / recipe
    if recipe.endswith((".yaml", ".yml")) and not Path(recipe).is_file() and beside.is_file():
        recipe = str(beside)
    return Grid(
        name=str(data.get("name") or path.stem),
        recipe=recipe,
        seeds=read_seeds(data.get("seeds", 5)),
        arms={str(k): flat_settings(v, f"arms.{k}") for k, v in arms.items()},
        baseline=str(data.get("baseline") or next(iter(arms))),
        overrides=flat_settings(data.get("overrides"), "overrides"),
        against={str(a): str(b) for a, b in (data.get("against") or {}).items()},
        description=str(data.get("description") or "").strip(),
        primary=None if data.get("primary") is None else str(data["primary"]),
    )


def grid_from_arguments(
    recipe: str, arms: Sequence[str], seeds: int | Sequence[int], overrides: Sequence[str]
) -> Grid:
    parsed: dict[str, dict[str, Any]] = {}
    for text in arms:
        name, _, values = text.partition(":")
        if name in parsed:
            raise ValueError(f"--arm {name!r} is named twice; rename one of them.")
        pairs = re.split(r",(?=[\w.]+=)", values) if values else []
        parsed[name] = expand_preset(read_pairs(pairs))
    return Grid(
        name=f"compare-{recipe_name(recipe)}",
        recipe=recipe,
        seeds=read_seeds(seeds),
        arms=parsed,
        baseline=next(iter(parsed), ""),
        overrides=read_pairs(overrides),
    )


def read_seeds(value: object) -> tuple[int, ...]:
    """Seeds from a list, or the first so many from a number."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return tuple(range(value))
    if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        return tuple(value)
    raise ValueError(f"seeds: expected a list of whole numbers or how many, got {value!r}.")


def flat_settings(data: object, where: str) -> dict[str, Any]:
    """Settings by dotted key, from nested or dotted ones; a world-model preset becomes its fields."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected settings such as `optimizer.lr: 1e-4`, got {data!r}.")
    return expand_preset({key: value for key, value in flatten(data, ARGUMENTS) if value != {}})


def expand_preset(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces ``world_model.preset`` by its fields but the coefficient; those that the arm names stay."""
    if _PRESET not in values:
        return values
    preset = WorldModelSettings.preset(str(values[_PRESET]))
    fields = {k: v for k, v in preset.model_dump().items() if k != "coef"}
    named = {f"world_model.{key}": value for key, value in fields.items()}
    return {**named, **{k: v for k, v in values.items() if k != _PRESET}}


def _file(name: str | Path) -> Path:
    if str(name) in recipe_names() and str(name) not in recipe_names("grid"):
        raise ValueError(
            f"{str(name)!r} is a recipe, not a grid: name the methods to compare, such as --arm grpo "
            f"--arm paw:{_PRESET}=paw."
        )
    return find_recipe(name, "grid")
