"""The tables of a report: success before and after by task type, settings, versions, key figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paw_train.evaluation.statistics import difference_interval
from paw_train.reporting.run.results import EvalResult, Rate
from paw_train.reporting.run.run_data import RunData
from paw_train.reporting.run.scales import duration_text, number_text
from paw_train.reporting.run.verdict import points, same_panel
from paw_train.settings.dotted import flatten
from paw_train.settings.mixture import entry_name


@dataclass(frozen=True, slots=True)
class Row:
    """Success on one task type, or on the whole panel (``all``)."""

    label: str
    before: Rate | None
    after: Rate | None
    change: str
    """in points; empty where the two are not comparable"""
    clear: bool
    """whether the 95 % interval of the change excludes 0"""

    @property
    def count(self) -> str:
        """Tasks: two numbers where they differ."""
        rates = (self.before, self.after)
        return " / ".join(dict.fromkeys(str(r.n) for r in rates if r is not None))


def result_rows(run: RunData) -> list[Row]:
    """The whole panel first, then each task type by name; empty without an evaluation."""
    before, after = run.before, run.after
    if before is None and after is None:
        return []
    first = before.by_type if before else {}
    second = after.by_type if after else {}
    rates = (None if result is None else result.overall for result in (before, after))
    whole = _row(run, "all", *rates)
    names = sorted({*first, *second})
    return [whole, *(_row(run, name, first.get(name), second.get(name)) for name in names)]


def _row(run: RunData, label: str, before: Rate | None, after: Rate | None) -> Row:
    comparable = run.before and run.after and same_panel(run.before, run.after)
    if not comparable or before is None or after is None:
        return Row(label, before, after, "", False)
    low, high = difference_interval(before.triple, after.triple)
    change = points(after.rate - before.rate)
    return Row(label, before, after, change, low > 0 or high < 0)


def panel_measures(run: RunData) -> list[tuple[str, str, str]]:
    """(name, before RL, after RL) of what else an evaluation measured; a dash where it did not."""
    rows = (
        ("mean steps", "mean_steps", False),
        ("mean return", "mean_reward", False),
        ("invalid responses", "invalid_rate", True),
    )
    found = []
    for label, name, share in rows:
        before, after = (_measure(result, name, share) for result in (run.before, run.after))
        if before or after:
            found.append((label, before or "–", after or "–"))
    return found


def _measure(result: EvalResult | None, name: str, share: bool) -> str:
    value = getattr(result, name) if result is not None else None
    return "" if value is None else number_text(value, share)


def setting_groups(run: RunData) -> dict[str, list[tuple[str, str]]]:
    """Every setting by its dotted key, and the versions where they are recorded."""
    groups = {"Settings": run.config, "Versions": run.environment}
    return {
        title: [(key, v if isinstance(v, str) else json.dumps(v)) for key, v in flatten(values)]
        for title, values in groups.items()
        if values
    }


def tiles(run: RunData) -> list[tuple[str, str]]:
    """The run in a few figures: (name, figure)."""
    seconds = sum(_sum(run, key) for key in ("seconds_rollout", "seconds_train"))
    tokens = _sum(run, "tokens")
    planned = run.planned_updates
    done = len(run.metrics)
    facts = [
        ("environments" if run.mixed else "environment", run.setting("env.id") or _env_id(run)),
        ("algorithm", _algorithm(run.setting("algorithm.name"), run.setting("world_model"))),
        ("updates", f"{done} of {planned}" if planned and planned != done else str(done)),
        ("RL time", duration_text(seconds) if seconds else ""),
        ("tokens in RL", number_text(tokens) if tokens else ""),
        ("warm start", _warm_start(run)),
        ("seed", run.setting("seed")),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _env_id(run: RunData) -> str:
    result = run.after or run.before
    own = run.config.get("env")
    if isinstance(own, list):
        return ", ".join(entry_name(entry) for entry in own if isinstance(entry, dict))
    return result.env_id if result is not None else own if isinstance(own, str) else ""


def _algorithm(name: Any, world_model: Any) -> str:
    if not name:
        return ""
    shown = str(name).upper()
    if not isinstance(world_model, dict):
        return shown
    if world_model.get("enabled") is False:
        return f"{shown}, world model off"
    return f"{shown} + WM ({world_model.get('loss', '')} × {world_model.get('coef', 1)})"


def _warm_start(run: RunData) -> str:
    if not run.warmstart:
        return ""
    last = run.warmstart[-1]
    seconds = last.get("seconds")
    took = f", {duration_text(seconds)}" if isinstance(seconds, int | float) else ""
    return f"{last['step']} steps{took}"


def _sum(run: RunData, key: str) -> float:
    values = (record.get(key) for record in run.metrics)
    return float(sum(v for v in values if isinstance(v, int | float)))
