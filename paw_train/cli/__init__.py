"""The ``paw`` program, one file a command; ``program`` puts them together."""

from __future__ import annotations

from typing import Any


def main(args: list[str] | None = None) -> Any:
    """Entry point of the ``paw`` script."""
    from paw_train.cli.program import app

    _import_from_current_folder()
    return app(args=args, prog_name="paw")


def _import_from_current_folder() -> None:
    """Lets ``module:id`` name a file of the current folder; installed modules go before it."""
    import os
    import sys

    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
