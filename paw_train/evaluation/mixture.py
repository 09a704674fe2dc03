"""The evaluation of a policy on the panels of a run's environments: one result of several."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from paw_gym.transition import Episode
from paw_train.evaluation import evaluate
from paw_train.evaluation.runner import Progress
from paw_train.evaluation.statistics import mean_rate_interval
from paw_train.rollouts.policy import Policy
from paw_train.settings import Settings


def evaluate_members(
    policy: Policy,
    settings: Settings,
    splits: Mapping[str, str],
    tasks: int,
    plays: int = 1,
    model: str = "",
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[list[Episode]]]:
    """Evaluates a policy on a panel of each environment of a run.

    Args:
        policy: answers.
        settings: of the run.
        splits: that the panels are sampled from, by environment.
        tasks: of each panel.
        plays: how many times each panel is run.
        model: its name in the result.
        progress: called with (finished, all) episodes.

    Returns:
        (the result: of a run of one environment as ``evaluate`` gives it, else ``joined``; the episodes of
        each environment)
    """
    e, members = settings.evaluation, settings.members
    rollout = settings.rollout.replace(temperature=e.temperature)
    results: dict[str, dict[str, Any]] = {}
    episodes: list[list[Episode]] = []
    done = 0
    for member in members:

        def advance(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, tasks * plays * len(members))

        result, played = evaluate(
            policy,
            member.env,
            splits[member.name],
            tasks,
            e.seed,
            rollout,
            e.seed,
            e.batch,
            model=model,
            progress=advance,
            plays=plays,
        )
        results[member.name] = result
        episodes.append(played)
        done += len(played)
    return (joined(results) if settings.mixed else results[members[0].name]), episodes


def joined(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Several results as one, in which each environment counts the same, however many tasks it has.

    Args:
        results: by environment, as ``result.json`` has them.

    Returns:
        The keys of ``result.json`` that make sense of several: ``success_rate`` and ``score`` are means over
        environments with intervals from theirs, ``by_type`` holds the environments, and
        ``by_environment`` the results as they were.
    """
    parts = list(results.values())
    rates = [(p["success_rate"], *p["ci95"]) for p in parts]
    hashes = "".join(p["panel_hash"] for p in parts)
    means = ("mean_steps", "invalid_rate", "truncated_rate", "mean_reward")
    sums = ("n", "tasks", "errors", "unplayed", "seconds", "model_calls")
    scores = [_around(p["score"]["mean"], *p["score"]["ci95"]) for p in parts]
    whole = {
        "panel": " + ".join(p["panel"] for p in parts),
        "panel_hash": hashlib.sha256(hashes.encode()).hexdigest()[: len(parts[0]["panel_hash"])],
        "env_id": " + ".join(dict.fromkeys(p["env_id"] for p in parts)),
        "agent": parts[0]["agent"],
        "model": parts[0]["model"],
        "success_rate": _mean([rate for rate, _, _ in rates]),
        "ci95": list(mean_rate_interval(rates)),
        "complete": all(p["complete"] for p in parts),
        "by_type": {
            name: {key: p[key] for key in ("n", "success_rate", "ci95")}
            for name, p in results.items()
        },
        **{key: _mean([p[key] for p in parts]) for key in means},
        **{key: sum(p[key] for p in parts) for key in sums},
        "score": {
            "mean": _mean([s for s, _, _ in scores]),
            "ci95": list(mean_rate_interval(scores)),
        },
        "by_environment": {name: dict(p) for name, p in results.items()},
    }
    if len({p["n"] for p in parts}) == 1 and all("successes" in p for p in parts):
        whole["successes"] = [success for p in parts for success in p["successes"]]
    return whole


def _around(mean: float, low: float, high: float) -> tuple[float, float, float]:
    """A mean with its bootstrap interval, which may miss it by a rounding error."""
    return mean, min(low, mean), max(high, mean)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
