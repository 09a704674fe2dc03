"""Episodes in a file, each with the place where it can be read again on its own."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from paw_gym.transition import Episode, episode_from_rows, read_parquet


class Place(NamedTuple):
    """The place of a record: bytes of a JSONL file, rows of a Parquet file."""

    start: int
    length: int


class Damaged(NamedTuple):
    """A line that is no record."""

    place: Place
    reason: str


def scan_lines(path: Path, start: int = 0) -> Iterator[tuple[Place, dict[str, Any] | Damaged]]:
    """The objects of a JSONL file from a byte on; a last line without a line break is not read yet."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            place = Place(start, len(line))
            start += len(line)
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield place, Damaged(place, str(error))
                continue
            if isinstance(value, dict):
                yield place, value
            else:
                yield place, Damaged(place, f"a {type(value).__name__}, not an object")


def read_line(path: Path, place: Place) -> dict[str, Any]:
    """The object at a place that ``scan_lines`` gave.

    Raises:
        ValueError: the file has changed since.
    """
    with path.open("rb") as file:
        file.seek(place.start)
        value = json.loads(file.read(place.length))
    if not isinstance(value, dict):
        raise ValueError("the file has changed: no record is where one was.")
    return value


def scan_episodes(path: Path, start: int = 0) -> Iterator[tuple[Place, Episode | Damaged]]:
    """The episodes of a JSONL file from a byte on, or of a Parquet file from a row on."""
    if path.suffix == ".parquet":
        yield from _scan_parquet(path, start)
        return
    for place, value in scan_lines(path, start):
        if isinstance(value, Damaged):
            yield place, value
            continue
        try:
            yield place, Episode.from_dict(value)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            yield place, Damaged(place, f"not an episode ({error})")


def _scan_parquet(path: Path, start: int) -> Iterator[tuple[Place, Episode | Damaged]]:
    at = 0
    for episode in read_parquet(path):
        length = max(1, len(episode.transitions))
        if at >= start:
            yield Place(at, length), episode
        at += length


class EpisodeReader:
    """Reads single episodes; of Parquet files the row groups read last stay in memory."""

    def __init__(self, groups: int = 4) -> None:
        self._groups: OrderedDict[tuple[Path, int, int], Any] = OrderedDict()
        self._most, self._lock = groups, Lock()

    def read(self, path: Path, place: Place) -> Episode:
        """The episode at a place that ``scan_episodes`` gave.

        Raises:
            ValueError: the file has changed since.
        """
        if path.suffix != ".parquet":
            return Episode.from_dict(read_line(path, place))
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        parts, first = [], 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            begin, end = max(place.start, first), min(place.start + place.length, first + rows)
            if begin < end:
                group = self._group(path, file, number)
                parts.append(group.slice(begin - first, end - begin))
            first += rows
        found = pa.concat_tables(parts).to_pylist() if parts else []
        if len(found) != place.length:
            raise ValueError("the file has changed: no record is where one was.")
        return episode_from_rows(found)

    def _group(self, path: Path, file: Any, number: int) -> Any:
        key = (path, path.stat().st_mtime_ns, number)
        with self._lock:
            if key not in self._groups:
                self._groups[key] = file.read_row_group(number)
                if len(self._groups) > self._most:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(key)
            return self._groups[key]
