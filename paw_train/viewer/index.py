"""A database of summaries of a run's episodes, built for one viewer and extended as the run grows.

It holds the place of every episode in its file, not the episode.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from paw_gym.internals.printable import encodable
from paw_gym.transition import Episode
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
"""episodes between commits, after which lists show them"""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE, phase TEXT, upd INTEGER, place INTEGER,
    signature TEXT, done INTEGER, note TEXT
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY, file INTEGER, ordinal INTEGER, start INTEGER, length INTEGER,
    tokens_start INTEGER, tokens_length INTEGER, place INTEGER, phase TEXT, upd INTEGER, grp TEXT,
    env_id TEXT, task_id TEXT, task_type TEXT, episode_id TEXT, instruction TEXT, words TEXT, outcome TEXT,
    ret REAL, steps INTEGER, first_turn INTEGER, invalid INTEGER, entropy REAL, advantage REAL,
    surprise REAL, selected INTEGER, lam REAL
);
CREATE UNIQUE INDEX episode_key ON episodes(file, ordinal);
CREATE INDEX episode_place ON episodes(place, file, ordinal);
CREATE INDEX episode_group ON episodes(grp);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, episode INTEGER, step INTEGER, action TEXT, observation TEXT,
    reward REAL, valid INTEGER, entropy REAL, advantage REAL, surprise REAL, selected INTEGER
);
CREATE TABLE texts (id INTEGER PRIMARY KEY, words TEXT);
"""

Progress = Callable[[int, int], None]
"""called with (bytes read, bytes to read)"""


class RunIndex:
    """The database of one run."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run, self.path = run.resolve(), folder / f"{uuid4().hex}.sqlite"
        with self.connect() as database:
            database.execute("PRAGMA journal_mode = WAL")
            first = int(time.time() * 1000)  # above those of a viewer that was here before
            begun = f"INSERT INTO meta VALUES ('generation', {first});"
            database.executescript(f"BEGIN; {_TABLES} {begun} COMMIT;")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection for one thread and a short time."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            database.execute("PRAGMA synchronous = OFF")  # it can be built again
            yield database

    def generation(self) -> int:
        with self.connect() as database:
            return generation_of(database)

    def refresh(self, progress: Progress | None = None, stop: Callable[[], bool] = bool) -> bool:
        """Reads what is new in the run's files; returns whether anything was.

        A file that grew is read on from where it ended, one that was replaced from its start.
        """
        files = {file.key: file for file in episode_files(self.run)}
        with self.connect() as database:
            known = {row["key"]: row for row in database.execute("SELECT * FROM files")}
            gone = [row for key, row in known.items() if key not in files]
            stale = [
                (file, signature, row)
                for key, file in files.items()
                if (signature := _signature(file)) != ((row := known.get(key)) and row["signature"])
            ]
            if not gone and not stale:
                return False
            for row in gone:
                with _transaction(database):
                    _forget(database, row["id"], entirely=True)
            report = _Report(stale, progress)
            for file, signature, row in stale:
                if stop():
                    break
                _Reading(database, file, signature, row).read(report, stop)
        return True


class _Report:
    """Sums the progress over files."""

    def __init__(self, stale: list[Any], progress: Progress | None) -> None:
        self.progress = progress or (lambda done, total: None)
        self.total = sum(file.path.stat().st_size for file, _, _ in stale if file.path.exists())
        self.before = 0

    def at(self, done: int) -> None:
        self.progress(self.before + done, self.total)

    def finished(self, file: EpisodeFile) -> None:
        self.before += file.path.stat().st_size if file.path.exists() else 0
        self.at(0)


class _Reading:
    """A file that is being read into the database, a batch of episodes at a time."""

    def __init__(
        self, database: sqlite3.Connection, file: EpisodeFile, signature: str, known: Any
    ) -> None:
        self.database, self.file, self.signature = database, file, signature
        with _transaction(database):
            self.number, self.done, self.ordinal = _open(database, file, signature, known)
        self.replaces = known is not None and self.done == 0
        self.tokens = _token_places(file.tokens)
        self.notes: list[str] = []
        self.pending: list[tuple[int, Place, EpisodeSummary, Place | None]] = []

    def read(self, report: _Report, stop: Callable[[], bool]) -> None:
        """Reads to the end of the file, or until it is asked to stop."""
        try:
            for place, episode in scan_episodes(self.file.path, self.done):
                self._add(place, episode)
                if len(self.pending) == _BATCH:
                    self._write(None)
                    report.at(self.done)
                    if stop():
                        return
        except (ValueError, OSError) as error:
            self.notes.append(f"read up to a damaged part ({error})")
        self._write(self.signature)
        report.finished(self.file)

    def _add(self, place: Place, episode: Episode | Damaged) -> None:
        self.done = place.start + place.length
        self.ordinal += 1
        try:
            if isinstance(episode, Damaged):
                raise ValueError(episode.reason)
            where = self.tokens.get(episode.episode_id)
            known = read_line(self.file.tokens, where) if self.file.tokens and where else None
            summary = summarise(episode, self.file, known)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            self.notes.append(f"record {self.ordinal} is damaged and left out ({error})")
        else:
            self.pending.append((self.ordinal - 1, place, summary, where))

    def _write(self, signature: str | None) -> None:
        """Stores the batch; ``signature`` marks a file that was read to its end."""
        with _transaction(self.database):
            if self.replaces:  # the old episodes go in the moment that the first new ones come
                _forget(self.database, self.number)
                self.replaces = False
            for item in self.pending:
                self._insert(*item)
            self.database.execute(
                "UPDATE files SET done = ?, signature = ?, note = ? WHERE id = ?",
                (self.done, signature, encodable("; ".join(self.notes)) or None, self.number),
            )
        self.pending.clear()

    def _insert(
        self, ordinal: int, place: Place, summary: EpisodeSummary, tokens: Place | None
    ) -> None:
        self.database.execute("SAVEPOINT episode")
        try:
            _insert(self.database, self.number, self.file, ordinal, place, summary, tokens)
        except (
            OverflowError,
            sqlite3.ProgrammingError,
        ) as error:  # a value that SQLite has no type for
            self.database.execute("ROLLBACK TO episode")
            self.notes.append(f"record {ordinal + 1} is damaged and left out ({error})")
        self.database.execute("RELEASE episode")


def _open(
    database: sqlite3.Connection, file: EpisodeFile, signature: str, row: sqlite3.Row | None
) -> tuple[int, int, int]:
    """(number of the file, where to read on, number of the next episode)."""
    if row is not None and _grown(row["signature"], signature):
        found = database.execute(
            "SELECT coalesce(max(ordinal) + 1, 0) FROM episodes WHERE file = ?", (row["id"],)
        )
        return row["id"], row["done"], found.fetchone()[0]
    if row is not None:
        return row["id"], 0, 0
    added = database.execute(
        "INSERT INTO files (key, phase, upd, place, done) VALUES (?, ?, ?, ?, 0)",
        (file.key, file.phase, file.update, file.place),
    )
    return int(added.lastrowid or 0), 0, 0


def _forget(database: sqlite3.Connection, number: int, entirely: bool = False) -> None:
    inside = "(SELECT id FROM episodes WHERE file = ?)"
    turns = f"(SELECT id FROM turns WHERE episode IN {inside})"
    database.execute(f"DELETE FROM texts WHERE id IN {turns}", (number,))
    database.execute(f"DELETE FROM turns WHERE episode IN {inside}", (number,))
    database.execute("DELETE FROM episodes WHERE file = ?", (number,))
    if entirely:
        database.execute("DELETE FROM files WHERE id = ?", (number,))


def _insert(
    database: sqlite3.Connection,
    number: int,
    file: EpisodeFile,
    ordinal: int,
    place: Place,
    e: EpisodeSummary,
    tokens: Place | None,
) -> None:
    first = database.execute("SELECT coalesce(max(id), 0) + 1 FROM turns").fetchone()[0]
    values = (
        *(number, ordinal, *place, *(tokens or (None, None)), file.place, file.phase, file.update),
        *(e.group, e.env_id, e.task_id, e.task_type, e.episode_id, e.instruction),
        f"{e.instruction}\n{e.task_id}".lower(),
        *(e.outcome, e.total_reward, len(e.turns), first, e.invalid, e.largest_entropy()),
        *(e.mean("advantage"), e.mean("surprise"), e.selected(), e.lam),
    )
    marks = ", ".join("?" * len(values))
    row = database.execute(
        f"INSERT INTO episodes VALUES (NULL, {marks})", tuple(map(_storable, values))
    ).lastrowid
    database.executemany(
        "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (first + i, row, t.step, _storable(t.action), _storable(t.observation), t.reward,
             t.valid, t.entropy, t.advantage, t.surprise, t.selected)
            for i, t in enumerate(e.turns)
        ],
    )  # fmt: skip
    words = [(first + i, _storable(t.words)) for i, t in enumerate(e.turns)]
    database.executemany("INSERT INTO texts VALUES (?, ?)", words)


def _storable(value: Any) -> Any:
    """The value as SQLite takes it: texts of models may hold half a surrogate pair."""
    return encodable(value) if isinstance(value, str) else value


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


def _signature(file: EpisodeFile) -> str:
    """Changes when the file does: its number, size and time, and those of the recorded tokens."""
    parts = []
    for path in (file.path, file.tokens):
        parts.append(_stamp(path) if path else None)
    return json.dumps(parts)


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
        with path.open("rb") as file:
            head = zlib.crc32(file.read(256))
    except OSError:
        return None
    return [stat.st_ino, head, stat.st_size, stat.st_mtime_ns]


def _grown(old: str | None, new: str) -> bool:
    """True if a file was only added to: it is the same, begins as before, and is longer."""
    if old is None:
        return False
    (was, tokens_was), (now, tokens_now) = json.loads(old), json.loads(new)
    return bool(was and now and was[:2] == now[:2] and was[2] < now[2] and tokens_was == tokens_now)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute(
            "INSERT INTO meta VALUES ('generation', 1) "
            "ON CONFLICT(name) DO UPDATE SET value = value + 1"
        )
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise


def generation_of(database: sqlite3.Connection) -> int:
    """A number that grows whenever something changes."""
    row = database.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()
    return int(row[0]) if row else 0
