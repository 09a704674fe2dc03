"""Episodes as numbers: the measured part of ``result.json``, and several results as one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface
from paw_train.agents.action_form import TRUNCATED
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.statistics import (
    bootstrap_mean_interval,
    crossed_bootstrap_interval,
    mean_rate_interval,
    pass_at_k,
    wilson_interval,
)

_BOOTSTRAP_SEED = 0
Runs = Mapping[int, Sequence[Episode | None]]
"""episodes by seed, in the panel's order; ``None``: the run stopped before it"""
UNPLAYED = "-"
"""stands in a run's ``successes`` for a task without an episode, or whose episode failed by an error"""


def summarise(
    runs: Runs,
    panel: Panel,
    env: AgentInterface,
    measured_only: bool = False,
    unnoted: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The measured part of ``result.json``; rates are ``None`` if no task counts.

    With one seed intervals of success are Wilson's; with several, bootstrap intervals over seeds and tasks.

    Args:
        measured_only: leave out tasks without a complete episode for every seed. Without it all count,
            and an episode that failed by an error is no success.
        unnoted: what was spent on episodes without a step.
    """
    counted = _counted(runs) if measured_only else runs
    table = _successes(counted)
    by_type = _by_type(counted)
    everything = [e for episodes in counted.values() for e in episodes if e is not None]
    ended = [e for episodes in runs.values() for e in episodes if e is not None]
    failed = [e for e in ended if e.error is not None]
    missing = sum(map(len, runs.values())) - len(ended)
    result = {
        "panel": panel.name,
        "panel_hash": panel.hash,
        "panel_note": panel.note,
        "env_id": env.env_id,
        **_rate(table),
        "tasks": len(panel.task_ids),
        "complete": not missing and not (failed and measured_only),
        "by_type": by_type,
        "averages": _averages(by_type, env.text_env.type_groups),
        "fingerprint": env.tasks.fingerprint,
        **_turns(everything),
        "mean_reward": _mean([e.total_reward for e in everything]),
        "score": _score(counted),
        "errors": len(failed),
        "unplayed": missing,
        "first_error": failed[0].error if failed else None,
        "failed_tasks": list(dict.fromkeys(e.task_id for e in failed)),
        "forgotten": _forgotten(everything),
        **_spent(ended, unnoted),
        "runs": [_run(seed, episodes, measured_only) for seed, episodes in runs.items()],
    }
    if len(runs) > 1:
        result["pass_at_k"] = _pass_at(table) if table[0] else {}
    elif len(everything) == len(panel.task_ids):
        result["successes"] = [bool(e.success) for e in everything]
    return result


def _counted(runs: Runs) -> dict[int, list[Episode | None]]:
    """The tasks with a complete episode for every seed."""
    columns = list(zip(*runs.values(), strict=True))
    fine = [all(e is not None and e.error is None for e in column) for column in columns]
    return {
        seed: [e for e, good in zip(episodes, fine, strict=True) if good]
        for seed, episodes in runs.items()
    }


def _successes(runs: Runs) -> list[list[float]]:
    return [[float(e is not None and e.success) for e in episodes] for episodes in runs.values()]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _turns(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Turns by how they ended; ``invalid_rate`` and ``truncated_rate`` are separate shares."""
    steps = [t for e in episodes for t in e.transitions]
    causes = Counter(
        t.info.get("agent", {}).get("problem") or t.info.get("problem") or "unknown"
        for t in steps
        if not t.action_is_valid
    )
    truncated = causes.get(TRUNCATED, 0)
    return {
        "mean_steps": _mean([len(e.transitions) for e in episodes]),
        "invalid_rate": (sum(causes.values()) - truncated) / max(1, len(steps)),
        "truncated_rate": truncated / max(1, len(steps)),
        "refused_rate": sum(t.refused for t in steps) / max(1, len(steps)),
        "invalid_causes": dict(causes.most_common()),
    }


def _forgotten(episodes: Sequence[Episode]) -> dict[str, int]:
    """Turns, and parts of prompts, that were left out of contexts that were too long."""
    notes = [[t.info.get("agent", {}) for t in e.transitions] for e in episodes]
    counts = [max((n.get("forgotten_turns", 0) for n in of), default=0) for of in notes]
    last = [e.transitions[-1].info for e in episodes if e.transitions]
    return {
        "episodes": sum(n > 0 for n in counts),
        "turns": sum(counts),
        "prompts": sum("cut_characters" in n for of in notes for n in of),
        "ended_episodes": sum(bool(info.get("context_full")) for info in last),
    }


def _rate(table: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Success rate and interval of a table of seeds x tasks, if there are tasks.

    If all succeed, or none, a bootstrap interval has width 0; the interval is then that of one seed.
    """
    tasks = len(table[0])
    if not tasks:
        return {"n": 0, "success_rate": None, "ci95": None}
    rate = float(np.mean(table))
    if len(table) == 1 or rate in (0.0, 1.0):
        low, high = wilson_interval(sum(table[0]), tasks)
    else:
        low, high = crossed_bootstrap_interval(table, _BOOTSTRAP_SEED)
        low, high = min(max(low, 0.0), rate), max(min(high, 1.0), rate)
    return {"n": tasks, "success_rate": rate, "ci95": [low, high]}


def _by_type(runs: Runs) -> dict[str, dict[str, Any]]:
    table, first = np.asarray(_successes(runs)), next(iter(runs.values()))
    types = np.array([e.task_type if e is not None else None for e in first])
    played = {e.task_type for e in first if e is not None}
    return {name: _rate(table[:, types == name].tolist()) for name in sorted(played)}


def _averages(
    by_type: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Mean success of groups of task types, each type counting once however many tasks it has.

    Groups without results are left out; with a single type there is nothing to average.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, types in groups.items():
        there = [kind for kind in types if kind in by_type]
        if there and len(by_type) > 1:
            parts = [by_type[kind] for kind in there]
            rates = [part["success_rate"] for part in parts]
            found[name] = {
                "types": there,
                "n": sum(part["n"] for part in parts),
                "success_rate": sum(rates) / len(rates),
                "ci95": _mean_interval(rates, parts),
            }
    return found


def _score(runs: Runs) -> dict[str, Any]:
    """Mean of the environment's score with a bootstrap interval, inside [0, 1] if all scores are."""
    table = [[e.score for e in episodes if e is not None] for episodes in runs.values()]
    if not table[0]:
        return {"mean": None, "ci95": None}
    if len(table) == 1:
        interval = bootstrap_mean_interval(table[0], _BOOTSTRAP_SEED)
    else:
        interval = crossed_bootstrap_interval(table, _BOOTSTRAP_SEED)
        if all(0 <= score <= 1 for row in table for score in row):
            interval = (max(interval[0], 0.0), min(interval[1], 1.0))  # widened for few seeds
    return {"mean": float(np.mean(table)), "ci95": list(interval)}


def _mean_interval(means: Sequence[float], parts: Sequence[Mapping[str, Any]]) -> list[float]:
    """The interval of the mean of several parts, from their own (``ci95``)."""
    return [*mean_rate_interval([(m, *p["ci95"]) for m, p in zip(means, parts, strict=True)])]


def _pass_at(table: Sequence[Sequence[float]]) -> dict[str, dict[str, Any]]:
    """pass@k, by k up to the number of seeds: mean over tasks, and bootstrap interval over tasks."""
    seeds = len(table)
    wins = np.asarray(table).sum(0).astype(int)
    found = {}
    for k in range(1, seeds + 1):
        values = [pass_at_k(seeds, int(c), k) for c in wins]
        interval = bootstrap_mean_interval(values, _BOOTSTRAP_SEED)
        found[str(k)] = {"mean": float(np.mean(values)), "ci95": list(interval)}
    return found


def _run(seed: int, episodes: Sequence[Episode | None], measured_only: bool) -> dict[str, Any]:
    """One seed: successes as a text of 0 and 1 in the panel's order; scores where they differ from it."""
    counts = [e is not None and not (measured_only and e.error is not None) for e in episodes]
    played = [(int(e.success), round(e.score, 6)) if e is not None else (0, 0.0) for e in episodes]
    found = [pair if good else None for pair, good in zip(played, counts, strict=True)]
    run: dict[str, Any] = {
        "seed": seed,
        "success_rate": _mean([pair[0] for pair in found if pair is not None]),
        "successes": "".join(UNPLAYED if pair is None else str(pair[0]) for pair in found),
    }
    if any(score != success for success, score in played):
        run["scores"] = [None if pair is None else pair[1] for pair in found]
    return run


def _spent(episodes: Sequence[Episode], unnoted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Model calls and tokens of all episodes; ``tokens`` is ``None`` if a policy reports none."""
    agents = [t.info.get("agent", {}) for e in episodes for t in e.transitions]
    records = [*unnoted, *(agent["spent"] for agent in agents if "spent" in agent)]
    calls = sum(r["calls"] for r in records)
    names = ("prompt", "completion", "cached")
    tokens = {name: sum(r[f"{name}_tokens"] for r in records) for name in names}
    counted = all(r["counted"] for r in records)
    return {"model_calls": calls, "tokens": tokens if counted else None}


def joined(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Results by environment as one, in which each counts the same, however many tasks it has.

    ``by_type`` holds the environments, and ``by_environment`` the results as they were.
    """
    parts = list(results.values())
    rates = [p["success_rate"] for p in parts]
    scores = [p["score"]["mean"] for p in parts]
    hashes = "".join(p["panel_hash"] for p in parts)
    means = ("mean_steps", "invalid_rate", "truncated_rate", "refused_rate", "mean_reward")
    sums = ("n", "tasks", "errors", "unplayed", "seconds", "model_calls")
    whole = {
        "panel": " + ".join(p["panel"] for p in parts),
        "panel_hash": hashlib.sha256(hashes.encode()).hexdigest()[: len(parts[0]["panel_hash"])],
        "env_id": " + ".join(dict.fromkeys(p["env_id"] for p in parts)),
        "agent": parts[0]["agent"],
        "model": parts[0]["model"],
        "success_rate": _mean(rates),
        "ci95": _mean_interval(rates, parts),
        "complete": all(p["complete"] for p in parts),
        "by_type": {
            name: {key: p[key] for key in ("n", "success_rate", "ci95")}
            for name, p in results.items()
        },
        **{key: _mean([p[key] for p in parts]) for key in means},
        **{key: sum(p[key] for p in parts) for key in sums},
        "score": {
            "mean": _mean(scores),
            "ci95": _mean_interval(scores, [p["score"] for p in parts]),
        },
        "by_environment": {name: dict(p) for name, p in results.items()},
    }
    if len({p["n"] for p in parts}) == 1 and all("successes" in p for p in parts):
        whole["successes"] = [success for p in parts for success in p["successes"]]
    return whole
