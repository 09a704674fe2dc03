"""Lets ``import gymnasium`` alone know the environments of ``paw_gym``.

Gymnasium 1.0 no longer reads the entry-point group ``gymnasium.envs``. An installed ``paw-gym``
therefore brings ``paw_gym_autoload.pth``, which Python executes at start: it calls ``install``,
which leaves a note on the import path. Nothing else is imported then; when, and only when,
``gymnasium`` has been imported, its environments are registered. Nothing here may fail loudly
before that, since it would do so in every Python program of the machine.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` is not imported: it would cost every start of Python some 7 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_AWAITED = "gymnasium"


class AfterGymnasium:
    """A finder that finds what the other finders find, and lets them register when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's specification with ``_register`` behind its loader; ``None`` for other names."""
        if name != _AWAITED:
            return None
        spec = _find_elsewhere(self, name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        loader.exec_module = execute_and_register


def _find_elsewhere(
    own: AfterGymnasium, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not own and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _register() -> None:
    if "paw_gym" in sys.modules:
        return  # it is what imports gymnasium, and registers its environments itself
    try:
        import paw_gym  # noqa: F401  (importing registers)
    except Exception as error:  # gymnasium must stay importable whatever happened to paw_gym
        if isinstance(error, ModuleNotFoundError) and error.name == "paw_gym":
            return  # uninstalled by hand, and the start-up file left behind
        import warnings

        warnings.warn(
            "paw_gym is installed, but its environments could not be registered with "
            f"Gymnasium: {type(error).__name__}: {error}",
            stacklevel=2,
        )


def install() -> None:
    """Waits for ``gymnasium``; does nothing when it is there already or awaited already."""
    if _AWAITED not in sys.modules and not any(
        isinstance(finder, AfterGymnasium) for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, AfterGymnasium())
