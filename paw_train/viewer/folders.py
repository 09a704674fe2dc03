"""The runs below a folder, the files of a run that hold episodes, and each episode's place in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.internals.printable import encodable
from paw_train.reporting.run.data import FILES

PHASES = ("before", "training", "after", "other")
"""phases of a run, in order: evaluation before RL, rollouts, evaluation after RL, anything else"""
RESULT = "result.json"
"""the result of an evaluation"""
_DEPTH = 3
"""levels of folders below the given one in which runs are looked for"""
_SKIPPED = {"checkpoints", "tensorboard", "tokens", "rollouts"}


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """A file of episodes."""

    key: str
    """its name in addresses: unique in the run, the same whenever the run is opened"""
    path: Path
    phase: str
    """one of ``PHASES``"""
    update: int | None
    """the update of training episodes, if the file's name is its number"""
    tokens: Path | None
    """the recorded tokens of training"""

    @property
    def place(self) -> int:
        """Sorts the files of a run: by phase, then by update."""
        return PHASES.index(self.phase) * 10**9 + (self.update or 0)


def find_runs(root: Path) -> dict[str, Path]:
    """The runs at or below a folder, by name: the path below the folder, or the folder's own name."""
    if not root.is_dir():
        raise ValueError(f"There is no folder {str(root)!r}; `paw train` writes runs to runs/.")
    if is_run(root):
        name = root.resolve().name
        return {name: root} | {f"{name}/{path.name}": path for path in _evaluations(root)}
    runs = {str(folder.relative_to(root).as_posix()): folder for folder in _below(root, _DEPTH)}
    if not runs:
        raise ValueError(
            f"{str(root)!r} holds no run: expected a folder with config.json, metrics.jsonl, "
            "result.json, rollouts/ or episodes*.jsonl, or a folder of such folders."
        )
    return runs


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name in _SKIPPED or path.name.startswith("."):
            continue
        if not os.access(path, os.R_OK | os.X_OK):  # such as lost+found
            continue
        if is_run(path):
            yield path
            yield from _evaluations(path)
        elif depth > 1:
            yield from _below(path, depth - 1)


def _evaluations(run: Path) -> Iterator[Path]:
    """The evaluations that `paw eval RUN` wrote into the run's folder."""
    for path in sorted(run.iterdir()):
        if path.name not in _SKIPPED and (path / RESULT).is_file():
            yield path


def is_run(folder: Path) -> bool:
    """True if a folder holds files that a training run or an evaluation leaves."""
    if any(folder.glob("*.safetensors")):
        return False  # a model has a config.json, too; shared warm starts are models beside runs
    known = any((folder / name).is_file() for name in (*FILES, RESULT))
    return known or (folder / "rollouts").is_dir() or any(folder.glob("episodes*.jsonl"))


def episode_files(run: Path) -> list[EpisodeFile]:
    """The files of a run that hold episodes, in the order of the run."""
    found = []
    for path in _listed(run / "rollouts"):
        tokens = run / "tokens" / path.name
        update = int(path.stem) if re.fullmatch(r"[0-9]{1,9}", path.stem) else None
        known = tokens if tokens.is_file() else None
        found.append(EpisodeFile(encodable(path.stem), path, "training", update, known))
    for path in _listed(run):
        if path.stem.startswith("episodes"):
            name = path.stem.removeprefix("episodes").strip("_") or "episodes"
            phase = name if name in ("before", "after") else "other"
            found.append(EpisodeFile(encodable(name), path, phase, None, None))
    unique = {file.key: file for file in found}
    return sorted(unique.values(), key=lambda file: (file.place, file.key))


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in sorted(folder.iterdir()) if p.suffix == ".jsonl" and p.is_file()]


class Place(NamedTuple):
    """The place of a record in its file, in bytes."""

    start: int
    length: int


def scan_lines(path: Path, start: int = 0) -> Iterator[tuple[Place, dict[str, Any] | str]]:
    """A JSONL file's objects from a byte on, or what is wrong with a line; an unended last line waits."""
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
                yield place, str(error)
            else:
                is_object = isinstance(value, dict)
                yield place, value if is_object else f"a {type(value).__name__}, not an object"


def read_line(path: Path, place: Place) -> dict[str, Any]:
    """The object at a place that ``scan_lines`` gave."""
    with path.open("rb") as file:
        file.seek(place.start)
        value = json.loads(file.read(place.length))
    if not isinstance(value, dict):
        raise ValueError("the file has changed: no record is where one was.")
    return value
