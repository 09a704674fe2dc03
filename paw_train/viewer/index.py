"""The summaries of a run's episodes, read again as the run's files grow.

It holds the place of every episode in its file, not the episode.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from paw_gym.internals.printable import encodable
from paw_gym.transition import Episode
from paw_train.viewer.folders import EpisodeFile, Place, episode_files, read_line, scan_lines
from paw_train.viewer.lists import Filter, Page, Row, Summary, position, select, summarise

_BATCH = 256
"""episodes that are read before lists show them"""

Stamp = list[int] | None
Signature = tuple[Stamp, Stamp]
"""the stamps of a file of episodes and of their recorded tokens"""


@dataclass
class IndexedFile:
    """A file of episodes, as far as it has been read. Its list of episodes only grows."""

    file: EpisodeFile
    signature: Signature | None = None
    """of the file when it was read to its end"""
    done: int = 0
    """bytes that were read"""
    records: int = 0
    """records that were read, whole or damaged"""
    episodes: list[Summary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class RunIndex:
    """The episodes of one run: one thread calls ``refresh``; others may read at the same time."""

    def __init__(self, run: Path) -> None:
        self.run = run.resolve()
        self.files: Mapping[str, IndexedFile] = {}
        """by key, in the order of the run; the mapping is replaced, never changed"""
        self.generation = int(time.time() * 1000)  # above those of an earlier viewer
        """a number that grows whenever something changes"""
        self._selected = lru_cache(maxsize=24)(
            lambda chosen, generation: select(self.episodes(), chosen)
        )

    def episodes(self) -> list[Summary]:
        """All episodes, in the order of the run."""
        return [episode for file in self.files.values() for episode in file.episodes]

    def find(self, key: str) -> Summary | None:
        """The episode with a key, ``file.number``."""
        file = self.files.get(key.rpartition(".")[0])
        return next((e for e in file.episodes if e.key == key), None) if file else None

    def group_of(self, episode: Summary) -> list[Summary]:
        """The episodes of an episode's group, including itself, in the order of the run."""
        return [other for other in self.episodes() if other.group == episode.group]

    def page(self, wanted: Page) -> Row:
        """A part of a list, and how many rows the list has."""
        chosen = Filter(**wanted.model_dump(include=set(Filter.model_fields)))
        items = self._selected(chosen, self.generation)
        key, _, step = (wanted.around or "").partition(":")
        known = self.find(key)
        at = None if known is None else position(items, wanted.view, known, step)
        offset = wanted.offset if at is None else at - at % wanted.limit
        part = items[offset : offset + wanted.limit]
        rows = [{**episode.head, **row} for episode, row in part]
        return {"total": len(items), "offset": offset, "at": at, "rows": rows}

    def overview(self) -> dict[str, Any]:
        """The choices of the filters, with the number of episodes for each."""
        episodes = self.episodes()

        def counts(values: Iterable[Any]) -> dict[Any, int]:
            return dict(sorted(Counter(value for value in values if value is not None).items()))

        damaged = [(key, file.notes) for key, file in sorted(self.files.items()) if file.notes]
        return {
            "episodes": len(episodes),
            "turns": sum(e.row["steps"] for e in episodes),
            "with_tokens": sum(e.row["entropy"] is not None for e in episodes),
            "phases": counts(e.file.phase for e in episodes),
            "outcomes": counts(e.head["outcome"] for e in episodes),
            "environments": counts(e.env_id for e in episodes),
            "types": counts(e.head["task_type"] for e in episodes),
            "kept": counts(e.file.update for e in episodes),
            "notes": [f"{key}: {'; '.join(notes)}" for key, notes in damaged],
        }

    def refresh(self, stop: Callable[[], bool]) -> None:
        """Reads what is new in the run's files until asked to stop; replaced files from their start."""
        files = {file.key: file for file in episode_files(self.run)}
        if self.files.keys() - files.keys():
            self._publish({key: file for key, file in self.files.items() if key in files})
        for key, file in files.items():
            signature = _stamp(file.path), _stamp(file.tokens)
            known = self.files.get(key)
            if not stop() and (known is None or known.signature != signature):
                grown = known is not None and _grown(known.signature, signature)
                self._read(known if known and grown else IndexedFile(file), signature, stop)

    def _read(self, held: IndexedFile, signature: Signature, stop: Callable[[], bool]) -> None:
        file, pending = held.file, []
        tokens = _token_places(file.tokens)
        try:
            for place, value in scan_lines(file.path, held.done):
                held.done = place.start + place.length
                held.records += 1
                try:
                    if isinstance(value, str):
                        raise ValueError(value)
                    episode = Episode.from_dict(value)
                    where = tokens.get(episode.episode_id)
                    record = read_line(file.tokens, where) if file.tokens and where else {}
                    key = f"{file.key}.{held.records - 1}"
                    pending.append(summarise(episode, key, file, place, where, record))
                except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                    note = f"record {held.records} is damaged and left out ({error})"
                    held.notes.append(encodable(note))
                if len(pending) == _BATCH:
                    self._show(held, pending)
                    if stop():
                        return
        except (ValueError, OSError) as error:
            held.notes.append(encodable(f"read up to a damaged part ({error})"))
        held.signature = signature
        self._show(held, pending)

    def _show(self, held: IndexedFile, pending: list[Summary]) -> None:
        """Adds episodes to a file; those of a file that it replaces disappear at this moment."""
        held.episodes.extend(pending)
        pending.clear()
        files = {**self.files, held.file.key: held}
        self._publish(dict(sorted(files.items(), key=lambda item: (item[1].file.place, item[0]))))

    def _publish(self, files: Mapping[str, IndexedFile]) -> None:
        self.files = files
        self.generation += 1


def _token_places(path: Path | None) -> Mapping[str, Place]:
    if path is None:
        return {}
    try:
        return {
            str(value.get("episode_id")): place
            for place, value in scan_lines(path)
            if not isinstance(value, str)
        }
    except OSError:
        return {}


def _stamp(path: Path | None) -> Stamp:
    """A file's number, beginning, size and time; ``None`` if it does not exist."""
    if path is None:
        return None
    try:
        stat = path.stat()
        with path.open("rb") as file:
            head = zlib.crc32(file.read(256))
    except OSError:
        return None
    return [stat.st_ino, head, stat.st_size, stat.st_mtime_ns]


def _grown(old: Signature | None, new: Signature) -> bool:
    """True if a file was only added to: it is the same file, begins as before, and is longer."""
    if old is None:
        return False
    (was, tokens_was), (now, tokens_now) = old, new
    return bool(was and now and was[:2] == now[:2] and was[2] < now[2] and tokens_was == tokens_now)
