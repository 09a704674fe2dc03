"""The data of a run's folder; a missing or damaged file becomes a note instead of an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paw_gym.transition import Episode, read_jsonl
from paw_train.reporting.run.alarms import Alarm, find_alarms, world_model_loss
from paw_train.reporting.run.records import Record, read_object, read_records
from paw_train.reporting.run.results import EvalResult, number
from paw_train.reporting.run.world_model import STAGES

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
    "noise_gradient.json": "the world model's gradient on noisy tokens",
}
_OPTIONAL = {
    *("environment.json", "warmstart.jsonl", "world_model.jsonl", "validation.jsonl"),
    "noise_gradient.json",
}
"""files that a complete run need not have"""


@dataclass(slots=True)
class RunData:
    """The data that a report shows, and notes on what is missing."""

    folder: Path
    config: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    noise: Record = field(default_factory=dict)
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
        """Whether several environments were trained on."""
        return isinstance(self.config.get("env"), list)

    @property
    def planned_updates(self) -> int | None:
        """RL updates in the settings."""
        planned = number(self.config.get("updates"))
        return None if planned is None else int(planned)

    @property
    def alarms(self) -> list[Alarm]:
        """Alarms that the measurements raise, in the order in which they were raised."""
        return find_alarms(self.metrics, world_model_loss(self.config))

    def setting(self, path: str) -> Any:
        """A nested setting by dotted path, or ``None``."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


def load_run(run_dir: str | Path) -> RunData:
    """Reads what there is in a run's folder.

    Raises:
        ValueError: there is no such folder, or nothing in it comes from a run.
    """
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
    run.noise = _read_object(run, "noise_gradient.json")
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
        lines = "1 line is" if damaged == 1 else f"{damaged} lines are"
        run.notes.append(f"{name}: {lines} damaged and left out (a killed run cuts its last line).")
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
    except ValueError as error:  # UnicodeDecodeError is one
        reason = str(error).replace(str(path), name)
        run.notes.append(f"{name}: read up to a damaged line ({reason}).")
    return episodes
