"""The summaries of a run's episodes, read again as the run's files grow.

It holds the place of every episode in its file, not the episode.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paw_gym.internals.printable import encodable
from paw_train.viewer.folders import (
    Damaged,
    EpisodeFile,
    Place,
    episode_files,
    read_line,
    scan_episodes,
    scan_lines,
)
from paw_train.viewer.summaries import EpisodeSummary, summarise

_BATCH = 256
"""episodes that are read before lists show them"""

Progress = Callable[[int, int], None]
"""called with (bytes read, bytes to read)"""
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
    episodes: list[EpisodeSummary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class RunIndex:
    """The episodes of one run: one thread calls ``refresh``; others may read at the same time."""

    def __init__(self, run: Path) -> None:
        self.run = run.resolve()
        self.files: Mapping[str, IndexedFile] = {}
        """by key, in the order of the run; the mapping is replaced, never changed"""
        self.generation = int(time.time() * 1000)  # above those of an earlier viewer
        """a number that grows whenever something changes"""

    def episodes(self) -> list[EpisodeSummary]:
        """All episodes, in the order of the run."""
        return [episode for file in self.files.values() for episode in file.episodes]

    def find(self, key: str) -> EpisodeSummary | None:
        """The episode with a key, ``file.number``."""
        file = self.files.get(key.rpartition(".")[0])
        return next((e for e in file.episodes if e.key == key), None) if file else None

    def group_of(self, episode: EpisodeSummary) -> list[EpisodeSummary]:
        """The episodes of an episode's group, including itself, in the order of the run."""
        return [other for other in self.episodes() if other.group == episode.group]

    def refresh(self, progress: Progress | None = None, stop: Callable[[], bool] = bool) -> bool:
        """Reads what is new in the run's files; returns whether anything was.

        A file that grew is read from where it ended, one that was replaced from its start.
        """
        files = {file.key: file for file in episode_files(self.run)}
        stale = [
            (file, signature)
            for file in files.values()
            if (signature := (_stamp(file.path), _stamp(file.tokens))) != self._signature(file)
        ]
        if self.files.keys() - files.keys():
            self._publish({key: file for key, file in self.files.items() if key in files})
        elif not stale:
            return False
        total = sum(stamp[2] for _, (stamp, _) in stale if stamp)
        before = 0

        def report(done: int) -> None:
            if progress:
                progress(before + done, total)

        for file, signature in stale:
            if stop():
                break
            self._read(file, signature, stop, report)
            before += signature[0][2] if signature[0] else 0
        return True

    def _signature(self, file: EpisodeFile) -> Signature | None:
        return self.files[file.key].signature if file.key in self.files else None

    def _read(
        self,
        file: EpisodeFile,
        signature: Signature,
        stop: Callable[[], bool],
        report: Callable[[int], None],
    ) -> None:
        """Reads to the end of the file, or until it is asked to stop."""
        known = self.files.get(file.key)
        held = known if known and _grown(known.signature, signature) else IndexedFile(file)
        tokens, pending = _token_places(file.tokens), []
        try:
            for place, episode in scan_episodes(file.path, held.done):
                held.done = place.start + place.length
                held.records += 1
                try:
                    if isinstance(episode, Damaged):
                        raise ValueError(episode.reason)
                    where = tokens.get(episode.episode_id)
                    record = read_line(file.tokens, where) if file.tokens and where else None
                    key = f"{file.key}.{held.records - 1}"
                    pending.append(summarise(episode, key, file, place, where, record))
                except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                    note = f"record {held.records} is damaged and left out ({error})"
                    held.notes.append(encodable(note))
                if len(pending) == _BATCH:
                    self._show(held, pending)
                    report(held.done)
                    if stop():
                        return
        except (ValueError, OSError) as error:
            held.notes.append(encodable(f"read up to a damaged part ({error})"))
        held.signature = signature
        self._show(held, pending)

    def _show(self, held: IndexedFile, pending: list[EpisodeSummary]) -> None:
        """Adds episodes to a file; those of a file that it replaces disappear at this moment."""
        held.episodes.extend(pending)
        pending.clear()
        files = sorted(
            {**self.files, held.file.key: held}.items(),
            key=lambda item: (item[1].file.place, item[0]),
        )
        self._publish(dict(files))

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
            if not isinstance(value, Damaged)
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
