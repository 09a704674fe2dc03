"""The places of a run's checkpoints. Nothing here needs torch."""

from __future__ import annotations

import shutil
from pathlib import Path

STATE_FILE = "state.pt"
"""beside the model: what training needs to go on from there; a checkpoint without it is not whole"""
NEW, OLD = ".new", ".old"
"""added to a checkpoint's name while it is replaced: what takes its place, and what was there"""


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of ``folder``: also one whose replacement was killed, the newer that is whole."""
    for suffix in ("", NEW, OLD):
        candidate = folder.with_name(folder.name + suffix)
        if (candidate / STATE_FILE).is_file():
            return candidate
    return None


def remove_checkpoint(folder: Path) -> None:
    """Removes the checkpoint of ``folder``, and what a kill left of its replacement."""
    for suffix in (OLD, NEW, ""):
        shutil.rmtree(folder.with_name(folder.name + suffix), ignore_errors=True)
