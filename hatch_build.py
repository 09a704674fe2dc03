"""Build hook: a wheel that is to leave the clone also holds the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Recipes(BuildHookInterface):  # type: ignore[type-arg]
    """Puts ``recipes/`` into the package, where an installed ``paw`` looks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; ``version`` is ``standard`` or ``editable``."""
        if version == "editable":
            return
        for recipe in sorted((Path(self.root) / "recipes").glob("**/*.yaml")):
            place = recipe.relative_to(self.root)
            build_data["force_include"][str(place)] = f"paw_train/{place}"
