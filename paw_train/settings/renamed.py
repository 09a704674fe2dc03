"""Settings that had another name: recorded ones are read under today's, and a recipe's are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_recorded(path: Path) -> dict[str, Any]:
    """The settings that a run recorded (``config.json``), as nested plain values under today's names.

    Raises:
        ValueError: the file does not hold settings.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} does not hold a run's settings ({error}).") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not hold a run's settings.")
    return with_new_names(data)


def with_new_names(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings, nested plain values, under today's names."""
    group = _old_world_model(recorded)
    if not isinstance(group, Mapping):
        return dict(recorded)
    objective = {key: value for key, value in recorded["objective"].items() if key != "wm"}
    world_model = with_new_dotted_names({f"objective.wm.{key}": group[key] for key in group})
    return {
        **recorded,
        "objective": objective,
        "world_model": {k.removeprefix("world_model."): v for k, v in world_model.items()},
    }


def with_new_dotted_names(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings by dotted name, under today's names."""
    switch = "objective.wm.wm"
    return {
        new_name(key): value not in ("off", False) if key == switch else value
        for key, value in recorded.items()
    }


def new_name(name: str) -> str:
    """Today's dotted name of a setting that had another one; any other name as it is."""
    if name == "objective.wm.wm":
        return "world_model.enabled"
    if f"{name}.".startswith("objective.wm."):
        return "world_model" + name.removeprefix("objective.wm")
    return name


def refuse_old_names(settings: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for an old name among nested settings; gives today's."""
    group = _old_world_model(settings)
    if group is None:
        return
    old = "objective.wm"
    if isinstance(group, Mapping) and group:
        old = f"{old}.{next(iter(group))}"
    values = " (true or false)" if old == "objective.wm.wm" else ""
    raise ValueError(f"The setting {old} is now called {new_name(old)}{values}.")


def _old_world_model(settings: Mapping[str, Any]) -> Any:
    objective = settings.get("objective")
    return objective.get("wm") if isinstance(objective, Mapping) else None
