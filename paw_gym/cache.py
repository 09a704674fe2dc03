"""The folder for what can be rebuilt: indices of data on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """``$PAW_CACHE_DIR``, or ``paw-gym`` in the user's cache folder. It need not exist yet."""
    chosen = os.environ.get("PAW_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "paw-gym"
