"""Episodes of a panel, one or several seeds, as numbers: the contents of ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paw_gym.transition import Episode
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.statistics import (
    bootstrap_mean_interval,
    crossed_bootstrap_interval,
    mean_rate_interval,
    pass_at_k,
    wilson_interval,
)

_BOOTSTRAP_SEED = 0
Runs = Mapping[int, Sequence[Episode]]
"""episodes by seed, in the panel's order"""


def summarise(
    runs: Runs,
    panel: Panel,
    agent: str,
    model: str,
    fingerprint: str,
    settings: Mapping[str, Any],
    seconds: float,
    type_groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The measured part of ``result.json``.

    An episode that failed by an error counts as no success, and is counted. With one seed intervals
    of success are Wilson's; with several, bootstrap intervals over seeds and tasks.

    Args:
        runs: the episodes by seed.
        panel: the tasks.
        agent: its name.
        model: the model's name.
        fingerprint: of the environment's tasks.
        settings: all that was set.
        seconds: wall time.
        type_groups: the environment's (``TextEnv.type_groups``).
    """
    by_type = _by_type(runs)
    everything = [episode for episodes in runs.values() for episode in episodes]
    turns = [len(e.transitions) for e in everything]
    invalid = [not t.action_is_valid for e in everything for t in e.transitions]
    result = {
        "panel": panel.name,
        "panel_hash": panel.hash,
        "env_id": everything[0].env_id,
        "agent": agent,
        "model": model,
        **_rate(_successes(runs)),
        "by_type": by_type,
        "averages": averages(by_type, type_groups or {}),
        "fingerprint": fingerprint,
        "settings": dict(settings),
        "mean_steps": float(np.mean(turns)),
        "invalid_rate": float(np.mean(invalid)) if invalid else 0.0,
        "mean_reward": float(np.mean([e.total_reward for e in everything])),
        "score": _score(runs),
        "errors": sum(e.error is not None for e in everything),
        "seconds": seconds,
        **_spent(everything),
        "runs": [_run(seed, episodes) for seed, episodes in runs.items()],
    }
    if len(runs) == 1:
        result["successes"] = [bool(e.success) for e in everything]
    else:
        result["pass_at_k"] = pass_at(_successes(runs))
    return result


def _successes(runs: Runs) -> list[list[float]]:
    return [[float(e.success) for e in episodes] for episodes in runs.values()]


def _rate(table: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Success rate and interval of a table of seeds x tasks.

    Where all is success, or nothing, a bootstrap knows no uncertainty; the interval is then that of
    one seed.
    """
    tasks = len(table[0])
    rate = float(np.mean(table))
    if len(table) == 1 or rate in (0.0, 1.0):
        low, high = wilson_interval(sum(table[0]), tasks)
    else:
        low, high = crossed_bootstrap_interval(table, _BOOTSTRAP_SEED)
        low, high = min(max(low, 0.0), rate), max(min(high, 1.0), rate)
    return {"n": tasks, "success_rate": rate, "ci95": [low, high]}


def _by_type(runs: Runs) -> dict[str, dict[str, Any]]:
    first = next(iter(runs.values()))
    table = _successes(runs)
    places: dict[str, list[int]] = {}
    for i, episode in enumerate(first):
        places.setdefault(episode.task_type, []).append(i)
    return {
        name: _rate([[row[i] for i in places[name]] for row in table]) for name in sorted(places)
    }


def averages(
    by_type: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Mean success of groups of task types, each type counting once however many tasks it has.

    Args:
        by_type: as in ``result.json``.
        groups: task types by the group's name.

    Returns:
        by group: the types it has results of, their tasks, mean and interval. Groups without any are
        left out; with a single type there is nothing to average.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, types in groups.items():
        there = [kind for kind in types if kind in by_type]
        if not there or len(by_type) < 2:
            continue
        parts = [by_type[kind] for kind in there]
        rates = [(part["success_rate"], part["ci95"][0], part["ci95"][1]) for part in parts]
        found[name] = {
            "types": there,
            "n": sum(int(part["n"]) for part in parts),
            "success_rate": sum(rate for rate, _, _ in rates) / len(rates),
            "ci95": list(mean_rate_interval(rates)),
        }
    return found


def _score(runs: Runs) -> dict[str, Any]:
    """Mean of the environment's score with a bootstrap interval."""
    table = [[e.score for e in episodes] for episodes in runs.values()]
    if len(table) == 1:
        interval = bootstrap_mean_interval(table[0], _BOOTSTRAP_SEED)
    else:
        interval = crossed_bootstrap_interval(table, _BOOTSTRAP_SEED)
    return {"mean": float(np.mean(table)), "ci95": list(interval)}


def pass_at(table: Sequence[Sequence[float]]) -> dict[str, dict[str, Any]]:
    """pass@k for every k up to the number of seeds, each an attempt at each task.

    Args:
        table: [S, N] successes, one row a seed.

    Returns:
        by k: ``mean`` over tasks of the unbiased estimate, and its bootstrap interval over tasks.
    """
    seeds = len(table)
    wins = np.asarray(table).sum(0).astype(int)
    found = {}
    for k in range(1, seeds + 1):
        values = [pass_at_k(seeds, int(c), k) for c in wins]
        interval = bootstrap_mean_interval(values, _BOOTSTRAP_SEED)
        found[str(k)] = {"mean": float(np.mean(values)), "ci95": list(interval)}
    return found


def _run(seed: int, episodes: Sequence[Episode]) -> dict[str, Any]:
    """One seed: successes as a text of 0 and 1 in the panel's order; scores where they say more."""
    successes = [int(e.success) for e in episodes]
    run: dict[str, Any] = {
        "seed": seed,
        "success_rate": float(np.mean(successes)),
        "successes": "".join(map(str, successes)),
    }
    scores = [round(e.score, 6) for e in episodes]
    if scores != successes:
        run["scores"] = scores
    return run


def _spent(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Model calls and tokens of all episodes; ``tokens`` is ``None`` where a policy told none."""
    records = [
        t.info["agent"]["spent"]
        for e in episodes
        for t in e.transitions
        if "spent" in t.info.get("agent", {})
    ]
    calls = sum(r["calls"] for r in records)
    tokens = {
        "prompt": sum(r["prompt_tokens"] for r in records),
        "completion": sum(r["completion_tokens"] for r in records),
    }
    counted = all(r["counted"] for r in records)
    return {"model_calls": calls, "tokens": tokens if counted else None}
