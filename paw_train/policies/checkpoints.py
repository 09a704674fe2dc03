"""Where a run keeps a policy. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path

STATE_FILE = "state.pt"
"""beside the model: what training needs to go on from there; written last"""


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of ``folder``: also one whose replacement was killed between two renames."""
    for candidate in (folder, folder.with_name(folder.name + ".old")):
        if (candidate / STATE_FILE).is_file():
            return candidate
    return None
