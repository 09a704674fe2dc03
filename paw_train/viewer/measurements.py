"""The curves, state and evaluation of a run, and the settings in which runs differ."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from paw_train.metrics import number
from paw_train.reporting.run.alarms import Alarm, find_alarms, loss_name
from paw_train.reporting.run.curves import described, measured
from paw_train.reporting.run.data import FILES, Rate, Record, read_object, read_records
from paw_train.settings.base import flatten
from paw_train.settings.endpoint import money
from paw_train.viewer.folders import RESULT

T = TypeVar("T")
_QUIET = 180.0
"""seconds without a change to its files until a run counts as stopped, or four updates' time if longer"""
_CURVE = 60
"""points of the small curve in a list of runs, at most"""


class Measurements:
    """The small files of one run: settings, measurements, evaluations."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._kept: dict[tuple[str, Any], tuple[tuple[int, int] | None, Any]] = {}
        self._lock = RLock()

    def signature(self) -> str:
        """A text that changes when one of the files does."""
        names = ("metrics.jsonl", "validation.jsonl", "config.json", "eval_after.json", RESULT)
        return "-".join(f"{s[0]:x}{s[1]:x}" if (s := _stamp(self.run / n)) else "" for n in names)

    def settings(self) -> Record:
        """``config.json``; for an evaluation, the settings in its result."""
        recorded = self._file("config.json", _object)
        return recorded or settings_of(self._file(RESULT, _object) or {})

    def evaluation(self) -> Record | None:
        """The values of an evaluation's page (``evaluation_of``); ``None`` for a training run."""
        if not (self.run / RESULT).exists():
            return None
        return evaluation_of(self._file(RESULT, _object) or {})

    def _alarms(self, path: Path) -> list[Alarm]:
        return find_alarms(list(_rows(path).values()), loss_name(self.settings()))

    def curves(self) -> dict[str, Any]:
        """``{"update": [...], "values": {name: [...]}}``; a value that an update lacks is null.

        Also ``metrics`` (in the order in which they are shown) and ``validation`` (update 0 is the start).
        """
        rows: dict[float, Record] = self._file("metrics.jsonl", _rows) or {}
        checks: dict[float, Record] = self._file("validation.jsonl", _rows) or {}
        names = measured(rows.values())
        return {
            "update": [int(u) for u in rows],
            "values": {name: [number(row.get(name)) for row in rows.values()] for name in names},
            "metrics": described(names),
            "validation": [
                {"update": int(u), "success_rate": number(check.get("success_rate"))}
                for u, check in checks.items()
            ],
        }

    def state(self) -> Record:
        """Kind (``training`` or ``evaluation``), progress and results in a few numbers."""
        settings, rows = self.settings(), self._file("metrics.jsonl", _rows) or {}
        planned = number(settings.get("updates"))
        before, after = (
            _rate(self._file(f"eval_{when}.json", _object)) for when in ("before", "after")
        )
        found = self.evaluation()
        last = rows[max(rows)] if rows else {}
        curve = [number(row.get("success_rate")) for row in rows.values()]
        world_model = settings.get("world_model")
        return {
            "kind": "training" if found is None else "evaluation",
            "date": self._date(rows),
            "agent": found["agent"] if found else None,
            "model": (found["model"] if found else _model(settings)) or None,
            "panel": found["panel"] if found else None,
            "score": found["score"]["mean"] if found and found["score"] else None,
            "cost": found["cost"] if found else None,
            "alarms": [asdict(a) for a in self._file("metrics.jsonl", self._alarms) or []],
            "state": self._phase(planned, rows, after),
            "updates": len(rows),
            "planned": None if planned is None else int(planned),
            "env": (found["env"] if found else None) or _environments(settings.get("env")),
            "algorithm": _of(settings.get("algorithm"), dict).get("name"),
            "world_model": world_model if isinstance(world_model, dict) else None,
            "seed": settings.get("seed"),
            "before": before,
            "after": after or (found["overall"] if found else None),
            "reward_mean": number(last.get("reward_mean")),
            "curve": curve[:: max(1, math.ceil(len(curve) / _CURVE))],
        }

    def _phase(self, planned: float | None, rows: dict[float, Record], after: Any) -> str:
        if after is not None or (planned is not None and planned > 0 and len(rows) >= planned):
            return "finished"
        if (self.run / RESULT).exists():
            return "finished"
        # before the first update a warm start, an evaluation or a world model is being worked on
        stamps = [stamp for name in FILES if (stamp := _stamp(self.run / name)) is not None]
        if not stamps:
            return "unknown"
        times = [t for row in rows.values() if (t := number(row.get("time"))) is not None]
        gaps = [b - a for a, b in pairwise(times[-6:]) if b > a]
        patience = max(_QUIET, 4 * max(gaps, default=0.0))
        last = max(stamp[1] for stamp in stamps) / 1e9
        return "training" if time.time() - last < patience else "stopped"

    def _date(self, rows: dict[float, Record]) -> float | None:
        """Seconds since 1970: when the first update was over, otherwise when its first file was written."""
        first = number(rows[min(rows)].get("time")) if rows else None
        stamp = _stamp(self.run / RESULT) or _stamp(self.run / "config.json")
        return stamp[1] / 1e9 if first is None and stamp else first

    def _file(self, name: str, read: Any) -> Any:
        stamp = _stamp(self.run / name)
        with self._lock:
            known = self._kept.get((name, read))
            if known is None or known[0] != stamp:
                known = self._kept[name, read] = (stamp, read(self.run / name) if stamp else None)
            return known[1]


def _environments(env: Any) -> str | None:
    listed = [one.get("id") for one in [env, *_of(env, list)] if isinstance(one, dict)]
    return " + ".join(dict.fromkeys(found for found in listed if isinstance(found, str))) or None


def _model(settings: Record) -> str:
    """The model that is trained: a folder, a hub name, or ``from scratch``."""
    model = _of(settings.get("model"), dict)
    return _of(model.get("path"), str) or ("from scratch" if model.get("scratch") else "")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _object(path: Path) -> Record | None:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return None


def _rows(path: Path) -> dict[float, Record]:
    try:
        return read_records(path, "update").by_key
    except OSError:
        return {}


_SHOWN = {
    *("agent", "model", "panel", "env_id", "n", "success_rate", "ci95", "score", "by_type"),
    *("averages", "pass_at_k", "runs", "successes", "cost", "tokens", "agent_settings", "sampling"),
    *("settings", "environment", "endpoint"),
}
"""fields that have their own place on the page"""
_DETAILS = ("agent_settings", "sampling", "endpoint", "environment", "settings")
"""objects that are folded away, in this order"""


def evaluation_of(result: Mapping[str, Any]) -> Record:
    """The page of an evaluation as JSON values; what the result lacks is ``None`` or empty."""
    overall, score = _rate(result), _of(result.get("score"), dict)
    mean, runs = number(score.get("mean")), _of(result.get("runs"), list)
    tokens = _of(result.get("tokens"), dict)
    if overall and mean is not None and abs(mean - overall["success_rate"]) < 1e-9:
        mean = None
    names = {"agent": "agent", "model": "model", "panel": "panel", "env": "env_id"}
    return {
        **{name: _of(result.get(key), str) for name, key in names.items()},
        "overall": overall,
        "score": None if mean is None else {"mean": mean, "ci95": score.get("ci95")},
        "types": _rates(result.get("by_type")),
        "averages": _rates(result.get("averages")),
        "pass_at_k": {
            k: number(part.get("mean"))
            for k, part in _of(result.get("pass_at_k"), dict).items()
            if isinstance(part, dict)
        },
        "runs": [
            {name: number(run.get(name)) for name in ("seed", "success_rate")}
            for run in runs
            if isinstance(run, dict)
        ],
        "cost": None if (cost := number(result.get("cost"))) is None else money(cost),
        "tokens": tokens if any(tokens.values()) else None,
        "measured": {
            key: value
            for key, value in result.items()
            if key not in _SHOWN and _plain(value) and value != ""
        },
        "details": {
            name: value
            for name in (*_DETAILS, *sorted(set(result) - _SHOWN))
            if isinstance(value := result.get(name), dict) and value
        },
    }


def settings_of(result: Mapping[str, Any]) -> Record:
    """The settings of an evaluation, to be compared with another's."""
    names = ("agent", "model", "panel", "action_format")
    named = {key: result[key] for key in names if _plain(result.get(key))}
    named |= {k: v for k in ("agent_settings", "sampling") if (v := _of(result.get(k), dict))}
    return {**named, **_of(result.get("settings"), dict)}


def _rate(value: Any) -> Record | None:
    if (rate := Rate.found(value)) is None:
        return None
    return {"n": rate.n, "success_rate": rate.rate, "ci95": [rate.low, rate.high]}


def _rates(value: Any) -> list[Record]:
    found = {name: _rate(data) for name, data in _of(value, dict).items()}
    return [{"name": name, **rate} for name, rate in found.items() if rate]


def _plain(value: Any) -> bool:
    return isinstance(value, str | bool) or number(value) is not None


def _of(value: Any, kind: type[T]) -> T:
    """The value if it is of a kind, otherwise an empty one of that kind."""
    return value if isinstance(value, kind) else kind()


_NAMES = ("name", "out")
"""settings that differ between any two runs and mean nothing"""


def differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings, as JSON texts, that differ between runs; ``None`` for a run that has no such setting."""
    flat = [
        {key: v if isinstance(v, str) else json.dumps(v) for key, v in flatten(one) if v != {}}
        for one in settings
    ]
    keys = dict.fromkeys(key for one in flat for key in one if key not in _NAMES)
    found = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if len(set(values)) > 1:
            found.append({"key": key, "values": values})
    return found
