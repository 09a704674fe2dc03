"""The ``paw`` program, one file a command; ``program`` puts them together."""

from __future__ import annotations

import os
from typing import Any


def main(args: list[str] | None = None) -> Any:
    """Entry point of the ``paw`` script."""
    from paw_train.cli.program import app

    # torch's threads spin while they wait, which makes small models ten times slower if another program
    # holds a core. libgomp reads this when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    return app(args=args, prog_name="paw")
