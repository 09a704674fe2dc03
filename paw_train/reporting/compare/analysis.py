"""Each arm's mean with its interval, and its difference from its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from paw_train.evaluation.statistics import (
    crossed_bootstrap_interval,
    holm,
    mean_interval,
    paired_t_p_value,
)
from paw_train.reporting.compare.results import RunResult

_BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds; rates are fractions."""

    arm: str
    seeds: tuple[int, ...]
    before: float | None
    """mean success before RL"""
    mean: float
    """mean success after RL"""
    ci95: tuple[float, float] | None
    """t interval over seeds, on this panel of tasks; ``None`` for one seed, or if all are equal"""
    tasks: int
    by_type: Mapping[str, float]
    rates: tuple[float, ...]
    """after RL, in the order of ``seeds``"""


@dataclass(frozen=True)
class Difference:
    """An arm against another, paired by seed; in fractions."""

    arm: str
    to: str
    """the other arm"""
    seeds: tuple[int, ...]
    """the seeds that both have"""
    mean: float
    ci95: tuple[float, float] | None
    """t interval of the differences by seed; ``None`` for one seed, or if all are equal"""
    p_value: float | None
    """two-sided paired t test; ``None`` if there is no interval"""
    p_holm: float | None
    """the same, adjusted for the number of arms compared (Holm); the primary contrast is not adjusted"""
    ci95_tasks: tuple[float, float] | None
    """bootstrap over seeds and tasks, tasks paired; ``None`` if single tasks are not recorded"""
    differences: tuple[float, ...]
    """by seed"""


@dataclass(frozen=True)
class Secondary:
    """A further measurement of one arm, mean over seeds, and its difference paired by seed."""

    measurement: str
    arm: str
    mean: float
    ci95: tuple[float, float] | None
    to: str | None
    """the arm that the difference is measured against; ``None`` if there is none"""
    difference: float | None
    difference_ci95: tuple[float, float] | None
    p_value: float | None
    """paired t test, not adjusted: these measurements explain, they do not decide"""


@dataclass(frozen=True)
class Comparison:
    """A comparison's statements, in the order in which they are shown."""

    baseline: str
    arms: tuple[ArmSummary, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """limits of the comparison, a sentence each"""
    secondary: tuple[Secondary, ...] = ()
    """by measurement, then by arm"""

    def difference(self, arm: str) -> Difference | None:
        """The arm's difference from its own baseline; ``None`` if it is the baseline."""
        return next((d for d in self.differences if d.arm == arm), None)


def compare(
    baselines: Mapping[str, str],
    baseline: str,
    runs: Sequence[RunResult],
    primary: str | None = None,
) -> Comparison:
    """Summarises the finished runs of a grid.

    Args:
        baselines: each arm, in display order, and the one that its difference is measured against (itself:
            none); arms without a finished run are named in the notes.
        baseline: the arm that most differences are measured against.
        runs: the finished runs, in any order.
        primary: the arm whose difference was named beforehand as the one that decides; its p-value is not
            adjusted, and does not count in adjusting the others.
    """
    ordered = sorted(runs, key=lambda run: run.seed)
    by_arm = {arm: {r.seed: r for r in ordered if r.arm == arm} for arm in baselines}
    done = [arm for arm in baselines if by_arm[arm]]
    differences = [
        d for arm in done if arm != baselines[arm] for d in _difference(arm, baselines[arm], by_arm)
    ]
    p_values = {d.arm: d.p_value for d in differences if d.p_value is not None}
    others = [arm for arm in p_values if arm != primary]
    adjusted = holm([p_values[arm] for arm in others])
    holm_of = {**p_values, **dict(zip(others, adjusted, strict=True))}
    final = tuple(replace(d, p_holm=holm_of.get(d.arm)) for d in differences)
    summaries = tuple(_summary(arm, by_arm[arm]) for arm in done)
    notes = _notes(by_arm, runs)
    if primary is not None:
        notes.append(
            f"{primary} is the primary contrast, named before the runs; the others are exploratory."
        )
    estimates: list[ArmSummary | Difference] = [*summaries, *final]
    if any(len(found.seeds) > 1 and found.ci95 is None for found in estimates):
        notes.append(
            "Where all seeds agree to the task there is no interval: too few seeds to estimate one."
        )
    further = tuple(_secondary(baselines, by_arm))
    return Comparison(baseline, summaries, final, tuple(notes), further)


def _summary(arm: str, by_seed: Mapping[int, RunResult]) -> ArmSummary:
    runs = list(by_seed.values())
    rates = [run.success_rate for run in runs]
    before = [float(c.before["success_rate"]) for c in runs if c.before]
    return ArmSummary(
        arm=arm,
        seeds=tuple(by_seed),
        before=float(np.mean(before)) if before else None,
        mean=float(np.mean(rates)),
        ci95=_interval(rates, 0.0, 1.0),
        tasks=int(runs[0].after["n"]),
        by_type=_types(runs),
        rates=tuple(rates),
    )


def _types(runs: Sequence[RunResult]) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for run in runs:
        for name, part in run.after["by_type"].items():
            rates.setdefault(name, []).append(part["success_rate"])
    return {name: float(np.mean(rates[name])) for name in sorted(rates)}


def _difference(
    arm: str, to: str, by_arm: Mapping[str, Mapping[int, RunResult]]
) -> list[Difference]:
    """The arm's difference, or nothing if the two have no seed in common."""
    base, other = by_arm[to], by_arm[arm]
    seeds = [seed for seed in other if seed in base]
    if not seeds:
        return []
    delta = [other[s].success_rate - base[s].success_rate for s in seeds]
    runs = [by_seed[s] for s in seeds for by_seed in (base, other)]
    one_panel = len({str(run.after.get("panel_hash")) for run in runs}) == 1
    rows = [
        np.subtract(other[s].successes or [], base[s].successes or []).tolist()
        for s in seeds
        if one_panel and None not in (other[s].successes, base[s].successes)
    ]
    return [
        Difference(
            arm,
            to,
            tuple(seeds),
            float(np.mean(delta)),
            _interval(delta, -1.0, 1.0),
            paired_t_p_value(delta) if _vary(delta) else None,
            None,
            crossed_bootstrap_interval(rows, _BOOTSTRAP_SEED) if len(rows) == len(seeds) else None,
            tuple(delta),
        )
    ]


def _secondary(
    baselines: Mapping[str, str], by_arm: Mapping[str, Mapping[int, RunResult]]
) -> Iterator[Secondary]:
    for name, measure in SECONDARY.items():
        values = {
            arm: {s: v for s, run in by_seed.items() if (v := measure(run)) is not None}
            for arm, by_seed in by_arm.items()
        }
        for arm, own in values.items():
            to = baselines[arm]
            delta = [own[s] - values[to][s] for s in own if s in values[to]] if to != arm else []
            if own:
                yield Secondary(
                    name,
                    arm,
                    float(np.mean(list(own.values()))),
                    _interval(list(own.values())),
                    to if delta else None,
                    float(np.mean(delta)) if delta else None,
                    _interval(delta),
                    paired_t_p_value(delta) if _vary(delta) else None,
                )


def _over_training(key: str, share: float) -> Callable[[RunResult], float | None]:
    """The mean of a measurement over the last ``share`` of a run's updates."""

    def measure(run: RunResult) -> float | None:
        known = [v for v in run.metrics.get(key, []) if v is not None]
        return float(np.mean(known[-max(1, round(share * len(known))) :])) if known else None

    return measure


def _takeoff(run: RunResult) -> float | None:
    """The first of three updates with a mean success of 30 %; one after the last if there are none."""
    success = [v for v in run.metrics.get("success_rate", []) if v is not None]
    if len(success) < 3:
        return None
    means = np.convolve(success, np.full(3, 1 / 3), "valid")
    reached = np.flatnonzero(means >= 0.3 - 1e-9)
    return float(reached[0]) + 1 if len(reached) else len(success) + 1.0


def _after(key: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.after.get(key)


SECONDARY: Mapping[str, Callable[[RunResult], float | None]] = MappingProxyType(
    {
        "success in training, mean of all updates, %": _over_training("success_rate", 1.0),
        "success in training, last quarter, %": _over_training("success_rate", 0.25),
        "first update with 30 % success in training (mean of three)": _takeoff,
        "groups with equal returns, mean of all updates, %": _over_training("equal_groups", 1.0),
        "observation NLL, last quarter": _over_training("obs_nll", 0.25),
        "observation NLL after RL, on common transitions": _after("common_nll"),
        "AUROC of refusals after RL, on common transitions": _after("common_auroc"),
        "invalid responses, last quarter, %": _over_training("invalid_rate", 0.25),
        # with optimizer.measure_gradients; for comparisons at equal strength
        "gradient norm of the policy term": _over_training("grad_norm_policy", 1.0),
        "gradient norm of the world-model term": _over_training("grad_norm_wm", 1.0),
    }
)
"""further measurements by name; one that ends in % is a share"""


def _vary(values: Sequence[float]) -> bool:
    """True if values differ; equal ones would have an interval without width, a false certainty."""
    return len(values) > 1 and max(values) - min(values) > 1e-9


def _interval(
    values: Sequence[float], low: float = -np.inf, high: float = np.inf
) -> tuple[float, float] | None:
    """The t interval of a mean, inside a range; ``None`` if the values do not vary."""
    if not _vary(values):
        return None
    ends = mean_interval(values)
    return max(low, ends[0]), min(high, ends[1])


def _notes(by_arm: Mapping[str, Mapping[int, RunResult]], runs: Sequence[RunResult]) -> list[str]:
    notes = []
    empty = [arm for arm, by_seed in by_arm.items() if not by_seed]
    if empty:
        notes.append(f"Not run yet: {', '.join(empty)}.")
    counts = {len(by_seed) for by_seed in by_arm.values() if by_seed}
    if len(counts) > 1:
        notes.append("The arms have different numbers of seeds; differences use those in common.")
    if counts and min(counts) == 1:
        notes.append(
            "One seed is no evidence about other seeds: no interval over seeds, no p-value."
        )
    if len({run.after.get("panel_hash") for run in runs}) > 1:
        notes.append("Not all runs were evaluated on the same tasks; tasks are not paired.")
    return notes
