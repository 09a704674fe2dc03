"""The runs of a viewer by name; no name is ever used as a path."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from paw_gym.internals.printable import encodable
from paw_gym.transition import Episode
from paw_train.viewer.conversation import conversation, notes
from paw_train.viewer.folders import (
    Place,
    episode_files,
    find_runs,
    is_run,
    read_line,
)
from paw_train.viewer.index import RunIndex
from paw_train.viewer.measurements import Measurements, differences
from paw_train.viewer.queries import Filter, Lists, find_episode, group_of, overview
from paw_train.viewer.summaries import outcome

_LOG = logging.getLogger(__name__)
_WATCHED = 60.0
"""seconds that a run is followed after it was last asked for"""
_PAUSE = 1.0
"""seconds between two looks at a run's files"""


class UnknownNameError(LookupError):
    """There is no run, or no episode, of this name."""


class Run:
    """One run: its small files, its index, its lists."""

    def __init__(self, name: str, folder: Path, indices: Path) -> None:
        self.name, self.folder = name, folder
        self.measurements = Measurements(folder)
        self.progress: tuple[int, int] | None = (0, 1)
        """(bytes read, bytes to read) while the index is behind"""
        self.asked = 0.0
        self._indices = indices
        self._lock = threading.Lock()
        self._index: RunIndex | None = None
        self._lists: Lists | None = None

    @property
    def index(self) -> RunIndex:
        self.asked = time.monotonic()
        with self._lock:
            if self._index is None:
                self._index = RunIndex(self.folder, self._indices)
                self._lists = Lists(self._index)
            return self._index

    @property
    def lists(self) -> Lists:
        assert self.index and self._lists is not None
        return self._lists

    def follow(self, stop: threading.Event) -> None:
        """Brings the index up to date, if the run is being looked at."""
        if self._index is None or time.monotonic() - self.asked > _WATCHED:
            return

        def note(done: int, total: int) -> None:
            self.progress = (done, max(1, total))

        self._index.refresh(note, stop.is_set)
        self.progress = None


class RunStore:
    """All runs at or below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._indices = tempfile.TemporaryDirectory(prefix="paw-view-")
        self._runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._look(find_runs(root))

    def _look(self, found: dict[str, Path]) -> None:
        fresh = {
            n: self._runs.get(n) or Run(n, path, Path(self._indices.name))
            for n, path in found.items()
        }
        self._runs = fresh

    def start(self) -> None:
        """Begins to follow the runs that are looked at, first the one that a page opens with."""
        first = self.first
        if first is not None:
            assert self._runs[first].index
        self._thread = threading.Thread(target=self._follow, name="paw-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._indices.cleanup()

    def _follow(self) -> None:
        while not self._stop.is_set():
            # a folder that is being written anew: what was found stays
            with contextlib.suppress(ValueError, OSError):
                self._look(find_runs(self.root))
            for run in list(self._runs.values()):
                try:
                    run.follow(self._stop)
                except Exception:  # of one run: the others are followed on
                    _LOG.exception("The index of %s could not be brought up to date.", run.name)
            self._wake.wait(_PAUSE)
            self._wake.clear()

    def names(self) -> list[str]:
        """The names of the runs, in the order of ``listed``."""
        return list(self._runs)

    @property
    def first(self) -> str | None:
        """The run that a page opens with: the only one, or the one whose folder was given."""
        names = list(self._runs)
        whole = self.root.resolve().name
        return names[0] if len(names) == 1 else whole if is_run(self.root) else None

    def run(self, name: str) -> Run:
        """The run of a name."""
        if name not in self._runs:
            raise UnknownNameError(f"There is no run {name!r} here.")
        return self._runs[name]

    def watched(self, name: str) -> Run:
        """The run of a name, which is followed for a while from now on."""
        run = self.run(name)
        new = run._index is None
        assert run.index
        if new:
            self._wake.set()
        return run

    def pulse(self, name: str | None) -> dict[str, Any]:
        """Changes when anything is new: cheap, as a page polls it every second or two."""
        if name is None:
            stamps = [f"{n}:{r.measurements.signature()}" for n, r in self._runs.items()]
            return {"runs": str(hash(tuple(stamps)))}
        run = self.watched(name)
        return {
            "episodes": run.index.generation(),
            "curves": run.measurements.signature(),
            "state": run.measurements.state()["state"],
            "indexing": run.progress,
        }

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": n, **r.measurements.state()} for n, r in self._runs.items()]

    def state(self, name: str) -> dict[str, Any]:
        """One run in a few numbers, with its result if it is an evaluation; reads no episodes."""
        found = self.run(name).measurements
        return {"name": name, **found.state(), "evaluation": found.evaluation()}

    def described(self, name: str) -> dict[str, Any]:
        run = self.watched(name)
        return {
            **self.state(name),
            "settings": run.measurements.settings(),
            "indexing": run.progress,
            **overview(run.index),
        }

    def differences(self, names: list[str]) -> list[dict[str, Any]]:
        """The settings that are not equal in all of these runs (see ``differences``)."""
        return differences([self.run(name).measurements.settings() for name in names])

    def page(
        self, name: str, chosen: Filter, offset: int, limit: int, around: str | None
    ) -> dict[str, Any]:
        """Rows of a list (see ``queries``)."""
        run = self.watched(name)
        return {**run.lists.page(chosen, offset, limit, around), "indexing": run.progress}

    def episode(self, name: str, key: str) -> dict[str, Any]:
        """One episode, whole."""
        run = self.watched(name)
        with run.index.connect() as database:
            row = find_episode(database, key)
            siblings = group_of(database, key)
        files = {file.key: file for file in episode_files(run.folder)}
        if row is None or row["file_key"] not in files:
            raise UnknownNameError(f"There is no episode {key!r} in this run.")
        file = files[row["file_key"]]
        episode = Episode.from_dict(read_line(file.path, Place(row["start"], row["length"])))
        known: dict[str, Any] = {}
        if row["tokens_start"] is not None and file.tokens is not None:
            known = read_line(file.tokens, Place(row["tokens_start"], row["tokens_length"]))
        recorded = known.get("episode_id", row["episode_id"])
        if {row["episode_id"], encodable(recorded)} != {encodable(episode.episode_id)}:
            raise ValueError("another record is where one was.")
        return {
            "key": key,
            "phase": row["phase"],
            "update": row["upd"],
            "group": siblings,
            "env_id": episode.env_id,
            "task_id": episode.task_id,
            "task_type": episode.task_type,
            "episode_id": episode.episode_id,
            "parent": episode.parent,
            "shared_steps": episode.shared_steps,
            "instruction": episode.instruction,
            "mode": episode.context_mode,
            "outcome": outcome(episode),
            "return": episode.total_reward,
            "error": episode.error,
            "notes": notes(episode),
            **{name: known.get(name) for name in ("lambda", "rho", "loss", "temperature")},
            "world_model": known.get("world_model"),
            "turns": conversation(episode, known),
        }

    def group(self, name: str, key: str, most: int = 16) -> list[dict[str, Any]]:
        """The episodes of one's group, itself included; branches follow the episode they branched from."""
        run = self.watched(name)
        with run.index.connect() as database:
            keys = group_of(database, key, most)
        if not keys:
            raise UnknownNameError(f"There is no episode {key!r} in this run.")
        return in_tree_order([self.episode(name, found) for found in keys])


def in_tree_order(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each episode followed by its branches and theirs; one without its parent stands as a root."""
    names = {e["episode_id"] for e in episodes}
    branches: dict[str, list[dict[str, Any]]] = {}
    for episode in episodes:
        if episode["parent"] in names:
            branches.setdefault(episode["parent"], []).append(episode)
    waiting = [e for e in reversed(episodes) if e["parent"] not in names]
    ordered = []
    while waiting:
        episode = waiting.pop()
        ordered.append(episode)
        waiting += reversed(branches.get(episode["episode_id"], []))
    return ordered
