"""Files that are written whole or not at all, and JSONL logs that a killed process may have cut short."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one line to a JSONL file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def truncate_jsonl(path: Path, key: str, below: int) -> None:
    """Drops the lines of ``path`` whose ``key`` is ``below`` or more: what a resumed run writes again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)[key] < below:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
            continue  # a line that a kill cut short
    write_text(path, "".join(kept))
