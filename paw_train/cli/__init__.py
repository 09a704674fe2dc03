"""The ``paw`` program, one file a command; ``program`` puts them together."""

from __future__ import annotations

from typing import Any


def main(args: list[str] | None = None) -> Any:
    """Entry point of the ``paw`` script."""
    from paw_train.cli.program import app

    return app(args=args, prog_name="paw")
