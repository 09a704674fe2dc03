"""The folder of an evaluation: finished episodes until it is complete, and refusals of another evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paw_gym.internals.files import json_text, write_json, write_text
from paw_gym.transition import Episode, write_jsonl
from paw_train.settings.base import differences

LOG = "unfinished.jsonl"
"""episodes of an evaluation that is not complete yet"""
_NAMED = 4
"""differences that a refusal names"""
_WITHOUT_EFFECT = tuple(f"rollout.{name}" for name in ("groups", "group_size"))


class EpisodeLog:
    """The finished episodes of one evaluation; those that failed are not kept: they are run again.

    The first line names the evaluation; a file of another one is replaced.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self._found: dict[tuple[int, str], Episode] = {}
        self._before = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._read()
        self._kept = len(lines)
        self._started = time.perf_counter()
        write_text(path, "".join([_line({"evaluation": key}), *lines]))

    def _read(self) -> list[str]:
        if _log_key(self.path) != self.key:
            return []
        kept: list[str] = []
        with self.path.open(encoding="utf-8") as file:
            file.readline()
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
        return self._found.get((seed, task_id))

    def add(self, seed: int, episode: Episode) -> None:
        if episode.error is not None:
            return
        record = {"seed": seed, "seconds": self.seconds, "episode": episode.to_dict()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
        self._kept += 1

    def close(self) -> None:
        """Removes the file if it holds nothing; ``evaluate_to_folder`` does once all is in a result."""
        if not self._kept:
            self.path.unlink(missing_ok=True)


def _line(record: Mapping[str, Any]) -> str:
    return json_text(record) + "\n"


def _log_key(path: Path) -> str | None:
    """The evaluation that a log belongs to; ``None``: there is no log, or nothing in it."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            head = json.loads(file.readline())
        except json.JSONDecodeError:
            return None
        key: str | None = head.get("evaluation") if isinstance(head, dict) else None
        return key if file.readline() else None


def finished_result(
    folder: Path, key: str, wanted: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, Any] | None:
    """The result in a folder if it is this evaluation's, and complete; ``None``: episodes are missing."""
    advice = "Give another folder (--out DIR), or replace what is there (--fresh)."
    there = _read(folder / "result.json")
    if there is None:
        if _log_key(folder / LOG) not in (None, key):
            raise ValueError(
                f"{folder} holds episodes of an unfinished evaluation with other settings. {advice}"
            )
        return None
    played, other = [run["seed"] for run in there.get("runs", [])], ""
    if there.get("evaluation") != key:
        other = _differences(there, wanted)
    elif played != list(seeds):
        other = f"--seeds {len(played)}, now {len(seeds)}"
    if other:
        raise ValueError(f"{folder} holds an evaluation with other settings: {other}. {advice}")
    return there if there["complete"] else None


def evaluate_to_folder(
    folder: Path, result: Mapping[str, Any], episodes: Sequence[Episode]
) -> Path:
    """Writes ``result.json`` and ``episodes.jsonl`` and returns the path of the result."""
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "episodes.jsonl", episodes)
    write_json(folder / "result.json", result)
    if result.get("complete"):
        (folder / LOG).unlink(missing_ok=True)
    return folder / "result.json"


def clear(folder: Path) -> None:
    for name in ("result.json", "episodes.jsonl", LOG):
        (folder / name).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or use --fresh.") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is no result of `paw eval`: give another folder (--out DIR).")
    return data


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The differing settings, under the names that a user writes."""
    changed = differences({key: there.get(key) for key in wanted}, wanted)
    found = []
    for key, (before, now) in changed.items():
        name = key.removeprefix("settings.").replace("agent_settings.", "agent.", 1)
        if name not in _WITHOUT_EFFECT:
            found.append(f"{name} {before!r}, now {now!r}")
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(sorted(found)[:_NAMED]) + more or "another version of paw-gym"
