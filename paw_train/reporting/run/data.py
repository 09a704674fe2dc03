"""A run's folder: its files, checked when they are read; what is missing or damaged becomes a note."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.internals.printable import counted
from paw_gym.transition import Episode, read_jsonl
from paw_train.evaluation.statistics import wilson_interval
from paw_train.metrics import number
from paw_train.reporting.run.alarms import Alarm, find_alarms, loss_name
from paw_train.settings.base import value_at


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate with its 95 % interval, fractions in [0, 1]."""

    n: int
    rate: float
    low: float
    high: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rate:
        """Reads ``n``, ``success_rate`` and ``ci95``; without ``ci95`` the Wilson interval is computed.

        Raises:
            ValueError: a value is missing or outside its range.
        """
        n, rate = number(data.get("n")), number(data.get("success_rate"))
        if n is None or n < 1 or rate is None or not 0 <= rate <= 1:
            raise ValueError(
                f"expected n >= 1 and success_rate in [0, 1], got n={data.get('n')!r} and "
                f"success_rate={data.get('success_rate')!r}"
            )
        interval = data.get("ci95")
        if interval is None:
            low, high = wilson_interval(rate * n, int(n))
            return cls(int(n), rate, low, high)
        ends = [number(end) for end in interval] if isinstance(interval, list) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None or not 0 <= ends[0] <= ends[1] <= 1:
            raise ValueError(f"expected ci95 as [low, high] in [0, 1], got {interval!r}")
        return cls(int(n), rate, ends[0], ends[1])

    @classmethod
    def found(cls, data: Any) -> Rate | None:
        """As ``from_dict``; ``None`` if it contains no rate."""
        try:
            return cls.from_dict(data)
        except (ValueError, AttributeError, TypeError):
            return None

    @property
    def triple(self) -> tuple[float, float, float]:
        """(rate, low, high)"""
        return self.rate, self.low, self.high

    @property
    def interval(self) -> str:
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % {self.interval}"


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation on a panel, from a result file; keys beyond the contract's are optional."""

    overall: Rate
    by_type: dict[str, Rate]
    panel: str
    panel_hash: str
    """identifies the exact tasks; results are compared only if it is equal"""
    env_id: str
    errors: int
    """episodes that an error of the environment ended; they do not count as successes"""
    successes: list[bool] | None
    """[n] one per task in the panel's order, if recorded"""
    scores: list[float] | None
    """[n] in [0, 1], in the same order, if recorded: WebShop's reward for a partial match"""
    recorded: Mapping[str, Any]
    """the whole file"""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EvalResult:
        by_type = data.get("by_type") or {}
        overall = Rate.from_dict(data)
        successes = data.get("successes")
        usable = isinstance(successes, list) and len(successes) == overall.n
        return cls(
            overall,
            {str(name): Rate.from_dict(rate) for name, rate in by_type.items()},
            str(data.get("panel") or ""),
            str(data.get("panel_hash") or data.get("fingerprint") or ""),
            str(data.get("env_id") or ""),
            int(number(data.get("errors")) or 0),
            [bool(s) for s in successes or []] if usable else None,
            _scores(data, overall.n),
            data,
        )


def _scores(data: Mapping[str, Any], n: int) -> list[float] | None:
    runs = data.get("runs")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], Mapping):
        return None  # for several seeds the report shows only the success rate
    scores = [number(score) for score in runs[0].get("scores") or []]
    found = [score for score in scores if score is not None]
    return found if len(found) == len(scores) == n else None


Record = dict[str, Any]


class Records(NamedTuple):
    """The content of a JSONL file."""

    by_key: dict[float, Record]
    """in rising order; the last of the records with the same key (from a resumed run)"""
    damaged: int
    """lines that are not records with the key"""


def read_object(path: Path) -> Record:
    """The object in a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    return value


def read_records(path: Path, key: str) -> Records:
    """The records of a JSONL file by the number ``key``; none if there is no file."""
    found: dict[float, Record] = {}
    damaged = 0
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in filter(str.strip, text.splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        place = number(record.get(key)) if isinstance(record, dict) else None
        if place is None:
            damaged += 1
        else:
            found[place] = record
    return Records(dict(sorted(found.items())), damaged)


STAGES = {"start": "start policy", "learned": "after learning it", "trained": "after policy RL"}
"""files of ``world_model/`` in a run's folder, in order"""
MAX_EPISODES = 12
"""episodes of one file that a page shows"""

FILES = {
    "config.json": "the settings",
    "metrics.jsonl": "the measurements of each update",
    "validation.jsonl": "success on the selection panel during training",
    "warmstart.jsonl": "the warm start's losses",
    "world_model.jsonl": "world-model learning before RL",
    "eval_before.json": "the evaluation before RL",
    "eval_after.json": "the evaluation after RL",
    "episodes_before.jsonl": "episodes before RL",
    "episodes_after.jsonl": "episodes after RL",
    "environment.json": "the versions of what ran",
}
_OPTIONAL = {"environment.json", "warmstart.jsonl", "world_model.jsonl", "validation.jsonl"}
"""files that a complete run need not have"""


@dataclass(slots=True)
class RunData:
    """The data that a report shows, and notes on what is missing."""

    folder: Path
    config: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    metrics: list[Record] = field(default_factory=list)
    validation: list[Record] = field(default_factory=list)
    warmstart: list[Record] = field(default_factory=list)
    world_model_learning: list[Record] = field(default_factory=list)
    world_model: dict[str, Record] = field(default_factory=dict)
    """measurements on held-out transitions, by stage"""
    before: EvalResult | None = None
    after: EvalResult | None = None
    episodes_before: list[Episode] = field(default_factory=list)
    episodes_after: list[Episode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what is missing or damaged, a sentence each"""

    @property
    def name(self) -> str:
        """The run's name in its settings, or that of its folder."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def mixed(self) -> bool:
        return isinstance(self.config.get("env"), list)

    @property
    def planned_updates(self) -> int | None:
        planned = number(self.config.get("updates"))
        return None if planned is None else int(planned)

    @property
    def alarms(self) -> list[Alarm]:
        """Alarms that the measurements raise, in the order in which they were raised."""
        return find_alarms(self.metrics, loss_name(self.config))

    def setting(self, path: str) -> Any:
        """A nested setting by dotted path, or ``None``."""
        return value_at(self.config, path)


def load_run(run_dir: str | Path) -> RunData:
    """Reads whatever a run's folder contains."""
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ValueError(
            f"There is no run folder {str(folder)!r}; `paw train` writes them to runs/."
        )
    if (folder / "result.json").exists() and not (folder / "metrics.jsonl").exists():
        raise ValueError(
            f"{str(folder)!r} holds an evaluation, and reports are of training runs: "
            f"`paw view {folder}` shows it."
        )
    if not any((folder / name).exists() for name in FILES):
        raise ValueError(
            f"{str(folder)!r} holds no file of a training run; expected at least one of "
            f"{', '.join(FILES)}."
        )
    run = RunData(folder)
    run.config = _read_object(run, "config.json")
    run.environment = _read_object(run, "environment.json")
    run.metrics = _read_records(run, "metrics.jsonl", "update")
    run.validation = _read_records(run, "validation.jsonl", "update")
    run.warmstart = _read_records(run, "warmstart.jsonl", "step")
    run.world_model_learning = _read_records(run, "world_model.jsonl", "update")
    measured = {when: _read_object(run, f"world_model/{when}.json") for when in STAGES}
    run.world_model = {when: found for when, found in measured.items() if found}
    run.before = _read_result(run, "eval_before.json")
    run.after = _read_result(run, "eval_after.json")
    run.episodes_before = _read_episodes(run, "episodes_before.jsonl")
    run.episodes_after = _read_episodes(run, "episodes_after.jsonl")
    _note_progress(run)
    return run


def _note_progress(run: RunData) -> None:
    missing = [n for n in FILES if n not in _OPTIONAL and not (run.folder / n).exists()]
    if missing:
        listed = ", ".join(f"{name} ({FILES[name]})" for name in missing)
        run.notes.append(f"Not there yet: {listed}.")
    planned, done = run.planned_updates, len(run.metrics)
    if planned is not None and done < planned:
        run.notes.append(
            f"{done} of {planned} updates are recorded: the run is still going, or it was stopped."
        )


def _read_object(run: RunData, name: str) -> Record:
    path = run.folder / name
    if not path.exists():
        return {}
    try:
        return read_object(path)
    except ValueError as error:
        run.notes.append(f"{name} is damaged and left out ({error}).")
        return {}


def _read_records(run: RunData, name: str, key: str) -> list[Record]:
    records, damaged = read_records(run.folder / name, key)
    if damaged:
        lines = counted(damaged, "damaged line")
        run.notes.append(f"{name}: {lines} left out (a killed run cuts its last line).")
    return list(records.values())


def _read_result(run: RunData, name: str) -> EvalResult | None:
    data = _read_object(run, name)
    if not data:
        return None
    try:
        return EvalResult.from_dict(data)
    except (ValueError, AttributeError, TypeError) as error:
        run.notes.append(f"{name} is left out: {error}.")
        return None


def _read_episodes(run: RunData, name: str) -> list[Episode]:
    path = run.folder / name
    if not path.exists():
        return []
    episodes: list[Episode] = []
    try:
        for episode in read_jsonl(path):
            if len(episodes) == MAX_EPISODES:
                run.notes.append(f"{name}: the first {MAX_EPISODES} episodes are shown.")
                break
            episodes.append(episode)
    except ValueError as error:  # includes UnicodeDecodeError
        reason = str(error).replace(str(path), name)
        run.notes.append(f"{name}: read up to a damaged line ({reason}).")
    return episodes
