"""The games of an ALFWorld data folder: which there are, their tasks, and why some are left out.

The original reads every file at every start (half a minute on the full data). Here a file is read
once and remembered with its size and times; a start looks at the folders and the files' times only.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paw_gym.envs.alfworld.data_folder import SPLITS, find_root, left_out_by_name, trials
from paw_gym.envs.alfworld.errors import DataFolderError, GameFileError, UnsolvableGameError
from paw_gym.envs.alfworld.index_cache import GameRecord, IndexCache, read_record
from paw_gym.envs.alfworld.native.game_file import GAME_FILE, load_compiled, load_game

__all__ = ["SPLITS", "GameEntry", "GameIndex", "fingerprint_of", "load_compiled", "load_game"]


@dataclass(frozen=True, slots=True)
class GameEntry:
    """One playable game."""

    task_id: str
    """"train/<task>/<trial>": the place below the data folder, the same on every machine"""
    task_type: str
    """one of `goal.TASK_TYPES`"""
    instruction: str
    """the text after "Your task is to: " """
    digest: str
    """sha256 of domain, grammar and problem (`compiled.game_digest`)"""
    path: Path


class GameIndex:
    """The playable games of some splits, in the order of their ids.

    Use `GameIndex.open`. Left out, as in the original: tasks named "movable" or "Sliced", trials
    without a game file, games marked unsolvable or not marked at all; `why_left_out` gives the reason.

    Attributes:
        entries: the games.
        fingerprint: sha256 over ids and digests of `entries`; machine and path play no part.
    """

    def __init__(self, root: Path, splits: Sequence[str], records: dict[str, GameRecord]) -> None:
        self._root = root
        self._splits = tuple(splits)
        self._left_out = {i: r.left_out for i, r in records.items() if r.left_out is not None}
        self.entries = tuple(
            GameEntry(i, r.task_type, r.instruction, r.digest, root / i / GAME_FILE)
            for i, r in sorted(records.items())
            if r.left_out is None
        )
        self.fingerprint = fingerprint_of(self.entries)
        self._by_id = {entry.task_id: entry for entry in self.entries}

    @classmethod
    def open(
        cls,
        data_dir: str | Path,
        splits: Sequence[str] | str | None = None,
        cache_dir: Path | None = None,
    ) -> GameIndex:
        """Index a data folder; only files that are new or changed since last time are read.

        Args:
            data_dir: the folder holding train/, valid_seen/, valid_unseen/, or the one holding
                json_2.1.1/.
            splits: one split or several; None: those that are there.
            cache_dir: where the index is kept; None: `paw_gym.cache.cache_dir()`.

        Raises:
            DataFolderError: when the folder or a split is missing or holds no game file.
            GameFileError: when a game file is corrupt.
        """
        root = find_root(data_dir)
        if splits is None:
            chosen = tuple(name for name in SPLITS if (root / name).is_dir())
        else:
            chosen = (splits,) if isinstance(splits, str) else tuple(splits)
        records: dict[str, GameRecord] = {}
        for split in chosen:
            records.update(_index_split(root, split, cache_dir))
        return cls(root, chosen, records)

    @classmethod
    def shared(cls, data_dir: str | Path, split: str) -> GameIndex:
        """One index for all environments of a process, so that the 128th costs nothing.

        Like `open`, but a folder that was indexed in this process is looked at again only when a task
        folder has been added or removed; for everything else, `open` it.
        """
        root = find_root(data_dir)
        folder = root / split
        modified_ns = folder.stat().st_mtime_ns if folder.is_dir() else 0
        return _shared_index(root, split, modified_ns)

    @property
    def ids(self) -> list[str]:
        """The task ids, sorted."""
        return list(self._by_id)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._by_id

    def __getitem__(self, task_id: str) -> GameEntry:
        """The game of an id.

        Raises:
            UnsolvableGameError: when the game is there but marked unsolvable.
            KeyError: when it is left out for another reason, or unknown.
        """
        entry = self._by_id.get(task_id)
        if entry is not None:
            return entry
        reason = self.why_left_out(task_id)
        if reason is None:
            raise KeyError(f"no game {task_id!r} in {', '.join(self._splits)}")
        error = UnsolvableGameError if "unsolvable" in reason else KeyError
        raise error(reason)

    def why_left_out(self, task_id: str) -> str | None:
        """A sentence on why an id that exists on disk is not among `entries`; None if it is no id.

        It has the form that `TaskSet(explain=...)` takes.
        """
        if task_id in self._by_id:
            return None
        reason = self._left_out.get(task_id)
        if reason is not None:
            return f"The game exists but is left out: {reason}."
        split, _, rest = task_id.partition("/")
        task, _, trial = rest.partition("/")
        if split not in SPLITS or not task or ".." in task_id:
            return None
        if not trial or not (self._root / task_id).is_dir():
            return None
        if split not in self._splits:
            return f"It belongs to the split {split!r}; this is {', '.join(self._splits)}."
        by_name = left_out_by_name(task)
        if by_name is not None:
            return f"The game exists but is left out: {by_name}."
        if not (self._root / task_id / GAME_FILE).is_file():
            return f"The trial exists but is left out: it has no {GAME_FILE}."
        return None


@functools.lru_cache(maxsize=8)
def _shared_index(root: Path, split: str, modified_ns: int) -> GameIndex:
    return GameIndex.open(root, split)


def fingerprint_of(entries: Iterable[GameEntry]) -> str:
    """sha256 (hex) over the ids and digests of some games, in the order given."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.task_id}\0{entry.digest}\n".encode())
    return digest.hexdigest()


def _index_split(root: Path, split: str, cache_dir: Path | None) -> dict[str, GameRecord]:
    folder = root / split
    cache = IndexCache.load(folder, cache_dir)
    records: dict[str, GameRecord] = {}
    corrupt: list[str] = []
    found = list(trials(root, split))
    for trial in found:
        if trial.stamp is None:
            continue
        record = cache.get(trial.task_id, trial.stamp)
        if record is None:
            try:
                record = read_record(folder.parent / trial.task_id, trial.stamp)
            except GameFileError as error:
                corrupt.append(str(error))
                continue
        records[trial.task_id] = record
    # Saved before any complaint, so that after a repair only the repaired files are read.
    cache.save(records)
    if corrupt:
        more = f" (and {len(corrupt) - 3} more files)" if len(corrupt) > 3 else ""
        raise GameFileError("; ".join(corrupt[:3]) + more)
    if not records:
        raise DataFolderError(
            f"{folder} holds {len(found)} trial folders and no {GAME_FILE} in any of them: it is "
            "half-extracted (the games come in an archive of their own). Extract the rest, or run: "
            "paw data download alfworld"
        )
    return records
