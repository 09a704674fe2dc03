"""Build hook: what a wheel holds besides the packages (see ``paw_gym_autoload`` for the ``.pth``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

AUTOLOAD = "paw_gym_autoload.pth"


class WheelContents(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the start-up file, and to a wheel that is to leave the clone also the recipes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; ``version`` is ``standard`` or ``editable``."""
        if version == "editable":
            build_data["force_include_editable"][AUTOLOAD] = AUTOLOAD
            return
        build_data["force_include"][AUTOLOAD] = AUTOLOAD
        for recipe in sorted((Path(self.root) / "recipes").glob("**/*.yaml")):
            place = recipe.relative_to(self.root)
            build_data["force_include"][str(place)] = f"paw_train/{place}"
