"""JSON files of a run, read although a killed process may have cut them short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from paw_train.reporting.run.results import number

Record = dict[str, Any]


class Records(NamedTuple):
    """The content of a JSONL file."""

    by_key: dict[float, Record]
    """in rising order; of records with the same key (a resumed run) the last"""
    damaged: int
    """lines that are no record with the key"""


def read_object(path: Path) -> Record:
    """The object in a JSON file.

    Raises:
        ValueError: it holds something else, or no JSON.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    return value


def read_records(path: Path, key: str) -> Records:
    """The records of a JSONL file by the number ``key``; none where there is no file."""
    found: dict[float, Record] = {}
    damaged = 0
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in filter(str.strip, text.splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        place = number(record.get(key)) if isinstance(record, dict) else None
        if place is None:
            damaged += 1
        else:
            found[place] = record
    return Records(dict(sorted(found.items())), damaged)
