"""The report of a training run, one HTML file that needs nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paw_gym.internals.files import write_text
from paw_gym.internals.printable import counted
from paw_gym.transition import Episode, Transition
from paw_train.evaluation.statistics import difference_interval
from paw_train.metrics import number
from paw_train.reporting.pages import blocks, changes, render
from paw_train.reporting.run.curves import chart_sections
from paw_train.reporting.run.data import STAGES, Rate, RunData, load_run
from paw_train.reporting.run.verdict import points, same_panel, verdict_of
from paw_train.reporting.texts import duration_text, number_text
from paw_train.settings.base import flatten

_WORLD_MODEL = {
    "similarity": ("similarity", 1.0, ""),
    "exact match": ("exact_match", 100.0, " %"),
    "token accuracy": ("token_accuracy", 100.0, " %"),
    "NLL per token": ("nll_per_token", 1.0, ""),
}
"""columns of the world model's table: key in a stage's file, scale and unit"""
_PANEL = {
    "mean steps": ("mean_steps", False),
    "mean return": ("mean_reward", False),
    "invalid responses": ("invalid_rate", True),
    "refused actions": ("refused_rate", True),
}
"""what else an evaluation measured: key in its file, and whether it is a share"""
MAX_CHARACTERS = 6000
"""most characters of a text shown in one place; hidden ones are counted"""


def write_report(run_dir: str | Path) -> Path:
    """Writes ``report.html``, which needs no network, into a run's folder, from whatever files are there."""
    run = load_run(run_dir)
    path = run.folder / "report.html"
    write_text(path, _page(run))
    return path


def _page(run: RunData) -> str:
    return render(
        "run.html",
        title=run.name,
        run=run,
        verdict=verdict_of(run),
        tiles=tiles(run),
        results=result_rows(run),
        measures=panel_measures(run),
        world_model_columns=list(_WORLD_MODEL),
        world_model=world_model_rows(run.world_model),
        sections=chart_sections(run),
        tasks=episodes_by_task(run),
        commands="\n".join(_commands(run)),
        settings=setting_groups(run),
    )


def world_model_rows(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each stage that was measured: its name, then the columns."""
    return [
        [
            label,
            *(
                _cell(found[when].get(key), scale, unit)
                for key, scale, unit in _WORLD_MODEL.values()
            ),
        ]
        for when, label in STAGES.items()
        if found.get(when)
    ]


def _cell(value: Any, scale: float, unit: str) -> str:
    mean = number(value.get("mean")) if isinstance(value, dict) else None
    if mean is None:
        return "–"
    digits = 1 if unit else 3
    ends = value.get("ci95")
    text = f"{scale * mean:.{digits}f}{unit}"
    if not isinstance(ends, list) or len(ends) != 2 or None in map(number, ends):
        return text
    return f"{text} [{scale * ends[0]:.{digits}f}, {scale * ends[1]:.{digits}f}]"


def episodes_by_task(run: RunData) -> dict[str, list[dict[str, Any]]]:
    """The episodes of each task, before and after RL, as ``episodes.html`` reads them."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for when, episodes in (("before", run.episodes_before), ("after", run.episodes_after)):
        for episode in episodes:
            prompts = ["", *(t.prompt for t in episode.transitions)]
            shown = {
                "when": when,
                "episode": episode,
                "outcome": _outcome(episode),
                "solved": bool(episode.success) and episode.error is None,
                "total_reward": number_text(episode.total_reward),
                "steps": [_step(*pair) for pair in zip(episode.transitions, prompts, strict=False)],
            }
            tasks.setdefault(episode.task_id, []).append(shown)
    return tasks


def _outcome(episode: Episode) -> str:
    steps = counted(len(episode.transitions), "step")
    if episode.error is not None:
        return f"environment failed after {steps}"
    if episode.success:
        return f"solved in {steps}"
    return f"{'not solved' if episode.finished else 'unfinished'}, {steps}"


def _step(transition: Transition, earlier: str) -> dict[str, Any]:
    parts = changes(earlier, transition.prompt)
    size = counted(len(transition.prompt), "character")
    if earlier:
        new = sum(text.count("\n") + 1 for kind, text in parts if kind == "new")
        size += f", {new} of {counted(len(transition.prompt.splitlines()), 'line')} new"
    shown = transition.response[:MAX_CHARACTERS]
    hidden = len(transition.response) - len(shown)
    return {
        "transition": transition,
        "prompt": parts,
        "prompt_size": size,
        "response": blocks(shown),
        "hidden": hidden,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """Success on one task type, or on the whole panel (``all``)."""

    label: str
    before: Rate | None
    after: Rate | None
    change: str
    """in points; empty if the two are not comparable"""
    clear: bool
    """whether the 95 % interval of the change excludes 0"""

    @property
    def count(self) -> str:
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
    """(name, before RL, after RL) of what else an evaluation measured; a dash for what it did not."""
    recorded = [result.recorded if result else {} for result in (run.before, run.after)]
    found = []
    for label, (name, share) in _PANEL.items():
        values = [number(result.get(name)) for result in recorded]
        if any(value is not None for value in values):
            before, after = ("–" if v is None else number_text(v, share) for v in values)
            found.append((label, before, after))
    return found


def setting_groups(run: RunData) -> dict[str, list[tuple[str, str]]]:
    """Every setting by its dotted key, and the versions if they are recorded."""
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
    result = run.after or run.before
    env_id = result.env_id if result else ""
    facts = [
        ("environments" if run.mixed else "environment", run.setting("env.id") or env_id),
        ("algorithm", _algorithm(run.setting("algorithm.name"), run.setting("world_model"))),
        ("updates", f"{done} of {planned}" if planned and planned != done else str(done)),
        ("RL time", duration_text(seconds) if seconds else ""),
        ("tokens in RL", number_text(tokens) if tokens else ""),
        ("warm start", _warm_start(run)),
        ("seed", run.setting("seed")),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


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
    return f"{counted(last['step'], 'step')}{took}"


def _sum(run: RunData, key: str) -> float:
    values = (record.get(key) for record in run.metrics)
    return float(sum(v for v in values if isinstance(v, int | float)))


def _commands(run: RunData) -> list[str]:
    folder = shlex.quote(str(run.folder))
    # JSON is YAML: the resolved settings are a recipe
    train = [
        f"cp {folder}/config.json again.yaml",
        f"paw train again.yaml {shlex.quote(f'name={run.name}-again')}",
    ]
    return [
        *(train if run.config else []),
        f"paw report {folder}    # writes this page again",
        f"paw view {folder}      # more episodes",
    ]
