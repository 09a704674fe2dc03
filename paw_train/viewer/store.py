"""The runs of a viewer by name; no name is ever used as a path."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from paw_gym.transition import Episode
from paw_train.viewer.conversation import conversation, notes
from paw_train.viewer.folders import find_runs, is_run, read_line
from paw_train.viewer.index import RunIndex
from paw_train.viewer.measurements import Measurements, differences
from paw_train.viewer.queries import Filter, Lists, overview
from paw_train.viewer.summaries import outcome

_LOG = logging.getLogger(__name__)
_WATCHED = 60.0
"""seconds that a run is followed after it was last asked for"""
_PAUSE = 1.0
"""seconds between two looks at a run's files"""
_SIBLINGS = 64
"""episodes of a group that an episode's page names"""


class UnknownNameError(LookupError):
    """There is no run, or no episode, with this name."""


class Run:
    """One run: its small files, its index, its lists."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.measurements = Measurements(folder)
        self.index = RunIndex(folder)
        self.lists = Lists(self.index)
        self.progress: tuple[int, int] | None = (0, 1)
        """(bytes read, bytes to read) while the index is behind"""
        self.asked: float | None = None
        """when the run was last looked at, in monotonic seconds"""

    def follow(self, stop: threading.Event) -> None:
        """Brings the index up to date, if the run is being looked at."""
        if self.asked is None or time.monotonic() - self.asked > _WATCHED:
            return

        def note(done: int, total: int) -> None:
            self.progress = (done, max(1, total))

        self.index.refresh(note, stop.is_set)
        self.progress = None


class RunStore:
    """All runs at or below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._look(find_runs(root))

    def _look(self, found: dict[str, Path]) -> None:
        self._runs = {name: self._runs.get(name) or Run(name, path) for name, path in found.items()}

    def start(self) -> None:
        """Begins to follow the runs that are being looked at, first the one that a page opens with."""
        if self.first is not None:
            self.watched(self.first)
        self._thread = threading.Thread(target=self._follow, name="paw-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _follow(self) -> None:
        while not self._stop.is_set():
            # a folder that is being rewritten: what was found is kept
            with contextlib.suppress(ValueError, OSError):
                self._look(find_runs(self.root))
            for run in list(self._runs.values()):
                try:
                    run.follow(self._stop)
                except Exception:  # in one run: the others are still followed
                    _LOG.exception("The index of %s could not be brought up to date.", run.name)
            self._wake.wait(_PAUSE)
            self._wake.clear()

    @property
    def first(self) -> str | None:
        """The run that a page opens with: the only one, or the one whose folder was given."""
        names = list(self._runs)
        whole = self.root.resolve().name
        return names[0] if len(names) == 1 else whole if is_run(self.root) else None

    def run(self, name: str) -> Run:
        if name not in self._runs:
            raise UnknownNameError(f"There is no run {name!r} here.")
        return self._runs[name]

    def watched(self, name: str) -> Run:
        """The run with a name, which is followed for a while from now on."""
        run = self.run(name)
        if run.asked is None:
            self._wake.set()
        run.asked = time.monotonic()
        return run

    def pulse(self, name: str | None) -> dict[str, Any]:
        """Values that change when anything is new: cheap, as a page polls them every second or two."""
        if name is None:
            stamps = [f"{n}:{r.measurements.signature()}" for n, r in self._runs.items()]
            return {"runs": str(hash(tuple(stamps)))}
        run = self.watched(name)
        return {
            "episodes": run.index.generation,
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
        run = self.watched(name)
        return {**run.lists.page(chosen, offset, limit, around), "indexing": run.progress}

    def episode(self, name: str, key: str) -> dict[str, Any]:
        index = self.watched(name).index
        known = index.find(key)
        if known is None:
            raise UnknownNameError(f"There is no episode {key!r} in this run.")
        file = known.file
        episode = Episode.from_dict(read_line(file.path, known.record))
        tokens = read_line(file.tokens, known.tokens) if file.tokens and known.tokens else {}
        if {known.episode_id, tokens.get("episode_id", known.episode_id)} != {episode.episode_id}:
            raise ValueError("another record is where one was.")
        return {
            "key": key,
            "phase": known.file.phase,
            "update": known.file.update,
            "group": [e.key for e in index.group_of(known)][:_SIBLINGS],
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
            **{name: tokens.get(name) for name in ("lambda", "rho", "loss", "temperature")},
            "world_model": tokens.get("world_model"),
            "turns": conversation(episode, tokens),
        }

    def group(self, name: str, key: str, most: int = 16) -> list[dict[str, Any]]:
        """The episodes of an episode's group, including itself; branches follow the one they came from."""
        index = self.watched(name).index
        known = index.find(key)
        if known is None:
            raise UnknownNameError(f"There is no episode {key!r} in this run.")
        return in_tree_order([self.episode(name, e.key) for e in index.group_of(known)[:most]])


def in_tree_order(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each episode followed by its branches and theirs; one whose parent is missing is a root."""
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
