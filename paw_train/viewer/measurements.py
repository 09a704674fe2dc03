"""The curves of a run, and where it stands; files are read again only when they changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

from paw_train.metrics import METRICS, NOT_MEASURED
from paw_train.reporting.run.alarms import Alarm, find_alarms, world_model_loss
from paw_train.reporting.run.results import number
from paw_train.settings.renamed import with_new_names
from paw_train.viewer.evaluations import evaluation_of, settings_of
from paw_train.viewer.folders import RESULT

_QUIET = 180.0
"""seconds without a new update after which a run counts as stopped, or four updates' time"""
Record = dict[str, Any]


class Measurements:
    """The small files of one run: settings, measurements, evaluations."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._kept: dict[str, tuple[tuple[int, int] | None, Any]] = {}
        self._alarms: tuple[tuple[int, int] | None, list[Alarm]] | None = None
        self._lock = Lock()

    def signature(self) -> str:
        """Changes when one of the files does."""
        names = ("metrics.jsonl", "validation.jsonl", "config.json", "eval_after.json", RESULT)
        return "-".join(f"{s[0]:x}{s[1]:x}" if (s := _stamp(self.run / n)) else "" for n in names)

    def settings(self) -> Record:
        """``config.json``; of an evaluation what its result says was set."""
        value = self._file("config.json", _object)
        if isinstance(value, dict):
            return with_new_names(value)
        result = self._file(RESULT, _object)
        return settings_of(result) if isinstance(result, dict) else {}

    def evaluation(self) -> Record | None:
        """What an evaluation's page shows (``evaluation_of``); ``None`` of a training run."""
        result = self._file(RESULT, _object)
        if isinstance(result, dict):
            return evaluation_of(result)
        return evaluation_of({}) if (self.run / RESULT).exists() else None

    def alarms(self) -> list[Alarm]:
        """What the measurements say is going wrong."""
        stamp = _stamp(self.run / "metrics.jsonl")
        with self._lock:
            known = self._alarms
        if known is None or known[0] != stamp:
            rows = self._file("metrics.jsonl", _rows) or {}
            loss = world_model_loss(self.settings())
            known = (stamp, find_alarms([rows[u] for u in sorted(rows)], loss))
            with self._lock:
                self._alarms = known
        return known[1]

    def curves(self) -> dict[str, Any]:
        """``{"update": [...], "values": {name: [...]}}``; a value that an update lacks is null.

        Also ``metrics`` (``name``, ``section``, ``meaning`` of each, in the order to show them in) and
        ``validation`` (``update``, ``success_rate``).
        """
        rows: dict[float, Record] = self._file("metrics.jsonl", _rows) or {}
        checks: dict[float, Record] = self._file("validation.jsonl", _rows) or {}
        names: dict[str, None] = {}
        for row in rows.values():
            names.update(dict.fromkeys(k for k, v in row.items() if number(v) is not None))
        for skipped in NOT_MEASURED:
            names.pop(skipped, None)
        order = sorted(rows)
        return {
            "update": [int(u) for u in order],
            "values": {name: [number(rows[u].get(name)) for u in order] for name in names},
            "metrics": _described(names),
            "validation": [
                {"update": int(u), "success_rate": number(checks[u].get("success_rate"))}
                for u in sorted(checks)
            ],
        }

    def state(self) -> Record:
        """Kind (``training`` or ``evaluation``), progress and results in a few numbers."""
        settings, rows = self.settings(), self._file("metrics.jsonl", _rows) or {}
        planned = number(settings.get("updates"))
        before, after = (self._result(f"eval_{when}.json") for when in ("before", "after"))
        played = self.evaluation()
        last = rows[max(rows)] if rows else {}
        algorithm, world_model = settings.get("algorithm"), settings.get("world_model")
        env = settings.get("env")
        return {
            "kind": "training" if played is None else "evaluation",
            "date": self._date(rows),
            "agent": played["agent"] if played else None,
            "model": (played["model"] if played else _model(settings)) or None,
            "panel": played["panel"] if played else None,
            "score": played["score"]["mean"] if played and played["score"] else None,
            "cost": played["cost"] if played else None,
            "alarms": [alarm.to_dict() for alarm in self.alarms()],
            "state": self._phase(planned, rows, after),
            "updates": len(rows),
            "planned": None if planned is None else int(planned),
            "env": (played["env"] if played else None)
            or (env.get("id") if isinstance(env, dict) else None),
            "algorithm": algorithm.get("name") if isinstance(algorithm, dict) else None,
            "world_model": world_model if isinstance(world_model, dict) else None,
            "seed": settings.get("seed"),
            "before": before,
            "after": after or (played["overall"] if played else None),
            "reward_mean": number(last.get("reward_mean")),
            "train_success": number(last.get("success_rate")),
            "curve": _thinned([number(rows[u].get("success_rate")) for u in sorted(rows)]),
        }

    def _phase(self, planned: float | None, rows: dict[float, Record], after: Any) -> str:
        if after is not None or (planned is not None and planned > 0 and len(rows) >= planned):
            return "finished"
        if (self.run / RESULT).exists():
            return "finished"
        stamp = _stamp(self.run / "metrics.jsonl") or _stamp(self.run / "config.json")
        if stamp is None:
            return "unknown"
        times = [t for u in sorted(rows) if (t := number(rows[u].get("time"))) is not None]
        gaps = [b - a for a, b in zip(times[-6:], times[-5:], strict=False) if b > a]
        patience = max(_QUIET, 4 * max(gaps, default=0.0))
        return "training" if time.time() - stamp[1] / 1e9 < patience else "stopped"

    def _date(self, rows: dict[float, Record]) -> float | None:
        """Seconds since 1970: when the first update was over, else when its first file was written."""
        first = number(rows[min(rows)].get("time")) if rows else None
        if first is not None:
            return first
        for name in (RESULT, "config.json"):
            if stamp := _stamp(self.run / name):
                return stamp[1] / 1e9
        return None

    def _result(self, name: str) -> Record | None:
        value = self._file(name, _object)
        if not isinstance(value, dict):
            return None
        rate = number(value.get("success_rate"))
        return (
            None
            if rate is None
            else {"success_rate": rate, "ci95": value.get("ci95"), "n": value.get("n")}
        )

    def _file(self, name: str, read: Any) -> Any:
        stamp = _stamp(self.run / name)
        with self._lock:
            if name not in self._kept or self._kept[name][0] != stamp:
                self._kept[name] = (stamp, read(self.run / name) if stamp else None)
            return self._kept[name][1]


def _described(names: Iterable[str]) -> list[dict[str, str]]:
    """What is known of measurements: the catalogue's first, in its order, then the others."""
    there = set(names)
    known = [m for m in METRICS.values() if m.name in there]
    found = [{"name": m.name, "section": m.section, "meaning": m.meaning} for m in known]
    others = [name for name in names if name not in METRICS]
    return found + [{"name": name, "section": "Further", "meaning": ""} for name in others]


def _model(settings: Record) -> str:
    """What is trained: a folder or hub name, or that it started from scratch."""
    model = settings.get("model")
    if not isinstance(model, dict):
        return ""
    path = model.get("path")
    return path if isinstance(path, str) else "from scratch" if model.get("scratch") else ""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _object(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None


def _rows(path: Path) -> dict[float, Record]:
    """By update; of equal ones the last, and a line that a kill cut short is no row."""
    found: dict[float, Record] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        update = number(row.get("update")) if isinstance(row, dict) else None
        if update is not None:
            found[update] = row
    return found


def _thinned(values: list[float | None], most: int = 60) -> list[float | None]:
    step = max(1, -(-len(values) // most))
    return values[::step]
