"""The places of a run's checkpoints, and the cutting of its logs back to one. Nothing here needs torch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paw_gym.internals.files import append_jsonl, truncate_jsonl

STATE_FILE = "state.pt"
"""beside the model: what training needs to go on from there; a checkpoint without it is incomplete"""
EVENTS = "events.jsonl"
"""in a run's folder: settings that changed during the run, and lines of its logs that were lost"""
NEW, OLD = ".new", ".old"
"""added to a checkpoint's name while it is replaced: for the new one, and for the old one"""


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of ``folder``, even if its replacement was killed: the newer one that is whole."""
    for suffix in ("", NEW, OLD):
        candidate = folder.with_name(folder.name + suffix)
        if (candidate / STATE_FILE).is_file():
            return candidate
    return None


def remove_checkpoint(folder: Path) -> None:
    """Removes the checkpoint of ``folder``, and what a kill left of its replacement."""
    for suffix in (OLD, NEW, ""):
        shutil.rmtree(folder.with_name(folder.name + suffix), ignore_errors=True)


def note_event(folder: Path, event: str, **values: Any) -> None:
    """Adds a line to a run's events."""
    append_jsonl(folder / EVENTS, {"event": event, **values, "time": time.time()})


def cut_logs(
    folder: Path, names: Sequence[str], done: int, say: Callable[[str], None], key: str = "update"
) -> None:
    """Drops log lines after update (or step) ``done``, which are computed again; reports unreadable ones."""
    for name in names:
        damaged = truncate_jsonl(folder / name, key, done + 1)
        if damaged:
            say(
                f"{folder / name}: line {', '.join(map(str, damaged))} was cut short and is dropped; its "
                f"{key} is missing there unless it comes after {key} {done}."
            )
            note_event(
                folder, "damaged lines dropped", file=name, lines=damaged, resumed_after=done
            )
