"""From the cells' results to statements: each arm's mean, and its difference to the baseline."""

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
    wilson_interval,
)
from paw_train.reporting.compare.results import CellResult

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
    """t interval over seeds, on this panel of tasks; ``None`` for one seed, or where all are equal"""
    ci95_tasks: tuple[float, float]
    """bootstrap over seeds and tasks (one seed: Wilson, over tasks alone)"""
    std: float | None
    """sample standard deviation over seeds"""
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
    """those that both have"""
    mean: float
    ci95: tuple[float, float] | None
    """t interval of the differences by seed; ``None`` for one seed, or where all are equal"""
    p_value: float | None
    """two-sided paired t test; ``None`` where there is no interval"""
    p_holm: float | None
    """the same, adjusted for the number of arms compared (Holm); the primary contrast stands alone"""
    ci95_tasks: tuple[float, float] | None
    """bootstrap over seeds and tasks, tasks paired; ``None`` where single tasks are not recorded"""
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
    """the arm that the difference is taken to; ``None``: to none"""
    difference: float | None
    difference_ci95: tuple[float, float] | None
    p_value: float | None
    """paired t test, not adjusted: these measurements explain, they do not decide"""


@dataclass(frozen=True)
class Comparison:
    """What a table shows."""

    baseline: str
    arms: tuple[ArmSummary, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """what a reader has to know, a sentence each"""
    secondary: tuple[Secondary, ...] = ()
    """by measurement, then by arm"""

    def difference(self, arm: str) -> Difference | None:
        """The arm's difference to its opponent; ``None`` for the baseline."""
        return next((d for d in self.differences if d.arm == arm), None)


def compare(
    opponents: Mapping[str, str],
    baseline: str,
    cells: Sequence[CellResult],
    primary: str | None = None,
) -> Comparison:
    """Sums up the finished cells of a grid.

    Args:
        opponents: each arm, in the order to show, and the one that its difference is taken to (itself:
            none); arms without a finished cell are named in the notes.
        baseline: the arm that most differences are taken to.
        cells: the finished cells, in any order.
        primary: the arm whose difference was named beforehand as the one that decides; its p-value is not
            adjusted, and does not count in the adjustment of the others.
    """
    by_arm = {arm: _by_seed(arm, cells) for arm in opponents}
    done = [arm for arm in opponents if by_arm[arm]]
    differences = [
        d for arm in done if arm != opponents[arm] for d in _difference(arm, opponents[arm], by_arm)
    ]
    tested = [d for d in differences if d.p_value is not None and d.arm != primary]
    adjusted = holm([d.p_value for d in tested if d.p_value is not None])
    holm_of = {d.arm: p for d, p in zip(tested, adjusted, strict=True)}
    if primary is not None:
        holm_of |= {
            d.arm: d.p_value for d in differences if d.arm == primary and d.p_value is not None
        }
    final = tuple(replace(d, p_holm=holm_of.get(d.arm)) for d in differences)
    summaries = tuple(_summary(arm, by_arm[arm]) for arm in done)
    notes = _notes(by_arm, cells)
    if primary is not None:
        notes.append(
            f"{primary} is the primary contrast, named before the runs; the others explore."
        )
    judged: list[ArmSummary | Difference] = [*summaries, *final]
    if any(len(found.seeds) > 1 and found.ci95 is None for found in judged):
        notes.append("Where all seeds agree to the task there is no interval: too few to tell.")
    further = tuple(_secondary(opponents, by_arm))
    return Comparison(baseline, summaries, final, tuple(notes), further)


def _by_seed(arm: str, cells: Sequence[CellResult]) -> dict[int, CellResult]:
    return {c.seed: c for c in sorted(cells, key=lambda c: c.seed) if c.arm == arm}


def _summary(arm: str, by_seed: Mapping[int, CellResult]) -> ArmSummary:
    cells = list(by_seed.values())
    rates = [cell.success_rate for cell in cells]
    before = [float(c.before["success_rate"]) for c in cells if c.before]
    return ArmSummary(
        arm=arm,
        seeds=tuple(by_seed),
        before=float(np.mean(before)) if before else None,
        mean=float(np.mean(rates)),
        ci95=_within(mean_interval(rates), 0.0, 1.0) if _vary(rates) else None,
        ci95_tasks=_task_interval(cells),
        std=float(np.std(rates, ddof=1)) if len(rates) > 1 else None,
        tasks=int(cells[0].after["n"]),
        by_type=_types(cells),
        rates=tuple(rates),
    )


def _task_interval(cells: Sequence[CellResult]) -> tuple[float, float]:
    if len(cells) == 1 or _panel(cells) is None:
        n = sum(int(c.after["n"]) for c in cells)
        return wilson_interval(sum(c.success_rate * c.after["n"] for c in cells), n)
    rows = [cell.successes or [] for cell in cells]
    return _within(crossed_bootstrap_interval(rows, _BOOTSTRAP_SEED), 0.0, 1.0)


def _panel(cells: Sequence[CellResult]) -> str | None:
    """The panel that all cells were evaluated on, task by task; ``None`` where there is no such thing."""
    panels = {str(cell.after.get("panel_hash")) for cell in cells}
    recorded = all(cell.successes is not None for cell in cells)
    return panels.pop() if len(panels) == 1 and recorded else None


def _types(cells: Sequence[CellResult]) -> dict[str, float]:
    names = sorted({name for cell in cells for name in cell.after["by_type"]})
    return {
        name: float(
            np.mean(
                [
                    cell.after["by_type"][name]["success_rate"]
                    for cell in cells
                    if name in cell.after["by_type"]
                ]
            )
        )
        for name in names
    }


def _difference(
    arm: str, to: str, by_arm: Mapping[str, Mapping[int, CellResult]]
) -> list[Difference]:
    """The arm's difference, or nothing where the two have no seed in common."""
    base, other = by_arm[to], by_arm[arm]
    seeds = [seed for seed in other if seed in base]
    if not seeds:
        return []
    delta = [other[s].success_rate - base[s].success_rate for s in seeds]
    several = _vary(delta)
    cells = [by_seed[s] for s in seeds for by_seed in (base, other)]
    rows = None
    if _panel(cells) is not None:
        rows = [
            np.subtract(other[s].successes or [], base[s].successes or []).tolist() for s in seeds
        ]
    return [
        Difference(
            arm,
            to,
            tuple(seeds),
            float(np.mean(delta)),
            _within(mean_interval(delta), -1.0, 1.0) if several else None,
            paired_t_p_value(delta) if several else None,
            None,
            crossed_bootstrap_interval(rows, _BOOTSTRAP_SEED) if rows else None,
            tuple(delta),
        )
    ]


def _secondary(
    opponents: Mapping[str, str], by_arm: Mapping[str, Mapping[int, CellResult]]
) -> Iterator[Secondary]:
    for name, measure in SECONDARY.items():
        values = {
            arm: {s: v for s, cell in by_seed.items() if (v := measure(cell)) is not None}
            for arm, by_seed in by_arm.items()
        }
        for arm, own in values.items():
            if own:
                other = values[opponents[arm]] if opponents[arm] != arm else {}
                yield _secondary_row(name, arm, own, opponents[arm], other)


def _secondary_row(
    name: str, arm: str, own: Mapping[int, float], to: str, other: Mapping[int, float]
) -> Secondary:
    delta = [own[s] - other[s] for s in own if s in other]
    several = _vary(delta)
    return Secondary(
        name,
        arm,
        float(np.mean(list(own.values()))),
        mean_interval(list(own.values())) if _vary(list(own.values())) else None,
        to if delta else None,
        float(np.mean(delta)) if delta else None,
        mean_interval(delta) if several else None,
        paired_t_p_value(delta) if several else None,
    )


def _over_training(key: str, share: float) -> Callable[[CellResult], float | None]:
    """The mean of a measurement over the last ``share`` of a cell's updates."""

    def measure(cell: CellResult) -> float | None:
        known = [v for v in cell.metrics.get(key, []) if v is not None]
        return float(np.mean(known[-max(1, round(share * len(known))) :])) if known else None

    return measure


SECONDARY: Mapping[str, Callable[[CellResult], float | None]] = MappingProxyType(
    {
        "success in training, mean of all updates, %": _over_training("success_rate", 1.0),
        "success in training, last quarter, %": _over_training("success_rate", 0.25),
        "observation NLL, last quarter": _over_training("obs_nll", 0.25),
        "invalid responses, last quarter, %": _over_training("invalid_rate", 0.25),
        # with optimizer.measure_gradients; for comparisons at equal strength
        "gradient norm of the policy term": _over_training("grad_norm_policy", 1.0),
        "gradient norm of the world-model term": _over_training("grad_norm_wm", 1.0),
    }
)
"""further measurements by name; one that ends in % is a share"""


def _vary(values: Sequence[float]) -> bool:
    """Whether there are several values, and not all the same.

    Rates on a panel are whole numbers of tasks, so two seeds can agree by chance; the t interval of
    equal values has no width, which would claim a certainty that is not there.
    """
    return len(values) > 1 and max(values) - min(values) > 1e-9


def _within(interval: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    return max(low, interval[0]), min(high, interval[1])


def _notes(
    by_arm: Mapping[str, Mapping[int, CellResult]],
    cells: Sequence[CellResult],
) -> list[str]:
    notes = []
    empty = [arm for arm, by_seed in by_arm.items() if not by_seed]
    if empty:
        notes.append(f"Not run yet: {', '.join(empty)}.")
    counts = {len(by_seed) for by_seed in by_arm.values() if by_seed}
    if len(counts) > 1:
        notes.append("The arms have different numbers of seeds; differences use those in common.")
    if counts and min(counts) == 1:
        notes.append("One seed says nothing about other seeds: no interval over seeds, no p-value.")
    if len({cell.after.get("panel_hash") for cell in cells}) > 1:
        notes.append("Not all cells were evaluated on the same tasks; tasks are not paired.")
    return notes
