"""Finished episodes on disk, so that an interrupted evaluation continues where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paw_gym.files import json_text, write_text
from paw_gym.transition import Episode


class EpisodeLog:
    """The finished episodes of one evaluation, until it is complete.

    The first line names the evaluation; a file of another one is replaced. Episodes that failed are
    not kept: they are run again.

    Args:
        path: the file.
        key: names the evaluation: equal for equal settings, prompts, tasks and weights.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self._found: dict[tuple[int, str], Episode] = {}
        self._before = 0.0
        self.replaced = False
        """whether a file of another evaluation lay there"""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._read()
        self._kept = len(lines)
        self._started = time.perf_counter()
        write_text(path, "".join([_line({"evaluation": key}), *lines]))

    def _read(self) -> list[str]:
        """The lines that can be used."""
        if not self.path.exists():
            return []
        kept: list[str] = []
        with self.path.open(encoding="utf-8") as file:
            try:
                if json.loads(file.readline()).get("evaluation") != self.key:
                    self.replaced = True
                    return []
            except (json.JSONDecodeError, AttributeError):
                return []
            for line in file:
                try:
                    record = json.loads(line)
                    episode = Episode.from_dict(record["episode"])
                    place = (int(record["seed"]), episode.task_id)
                    self._before = float(record["seconds"])
                except (json.JSONDecodeError, KeyError, TypeError, ValueError):
                    continue  # truncated by a kill
                self._found[place] = episode
                kept.append(line if line.endswith("\n") else line + "\n")
        return kept

    @property
    def seconds(self) -> float:
        """Wall time of this evaluation, the parts before a kill included."""
        return self._before + time.perf_counter() - self._started

    def get(self, seed: int, task_id: str) -> Episode | None:
        """An episode that was finished earlier."""
        return self._found.get((seed, task_id))

    def add(self, seed: int, episode: Episode) -> None:
        """Keeps an episode that has just finished."""
        if episode.error is not None:
            return
        record = {"seed": seed, "seconds": self.seconds, "episode": episode.to_dict()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
        self._kept += 1

    def discard_empty(self) -> None:
        """Removes the file if no episode is in it."""
        if not self._kept:
            self.path.unlink(missing_ok=True)

    def close(self, complete: bool) -> None:
        """Removes the file when everything is in the result."""
        if complete:
            self.path.unlink(missing_ok=True)


def _line(record: Mapping[str, Any]) -> str:
    return json_text(record) + "\n"
