"""The cost of an arm relative to its baseline: time of an update, its parts, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paw_train.reporting.compare.results import RunResult

_PARTS = ("seconds_rollout", "seconds_train")


@dataclass(frozen=True)
class Cost:
    """Medians over updates, meaned over seeds."""

    seconds_rollout: float
    seconds_train: float
    tokens: float | None
    """a mean over updates: how much work there was"""
    peak_memory_mb: float | None
    """the highest of any update"""

    @property
    def seconds(self) -> float:
        """Of an update."""
        return self.seconds_rollout + self.seconds_train


@dataclass(frozen=True)
class Overhead:
    """An arm's cost against another's, over the seeds that both have; shares, 0.02 is +2 %."""

    arm: str
    to: str
    seeds: tuple[int, ...]
    cost: Cost
    time: float
    rollout: float
    train: float
    memory: float | None
    train_per_token: float | None
    """of the update's time for each token learned from: what is left when episodes differ in length"""


def cost_of(runs: Sequence[RunResult]) -> Cost | None:
    """The cost of some runs; ``None`` where none has times.

    The first update of each run is left out: it pays for first-time allocations.
    """
    timed = [c for c in runs if all(_values(c, key) for key in _PARTS)]
    if not timed:
        return None
    memory = [max(v) for c in timed if (v := _values(c, "peak_memory_mb"))]
    tokens = [float(np.mean(v)) for c in timed if (v := _values(c, "tokens"))]
    rollout, train = (float(np.mean([np.median(_values(c, k)) for c in timed])) for k in _PARTS)
    return Cost(
        rollout,
        train,
        float(np.mean(tokens)) if tokens else None,
        float(np.mean(memory)) if memory else None,
    )


def overheads(baselines: Mapping[str, str], runs: Sequence[RunResult]) -> list[Overhead]:
    """The cost of every arm relative to its baseline, over the seeds in common."""
    found = []
    for arm, to in baselines.items():
        if arm == to:
            continue
        own = {c.seed: c for c in runs if c.arm == arm}
        other = {c.seed: c for c in runs if c.arm == to}
        seeds = [seed for seed in own if seed in other]
        here = cost_of([own[s] for s in seeds])
        base = cost_of([other[s] for s in seeds])
        if here is not None and base is not None:
            found.append(_overhead(arm, to, seeds, here, base))
    return found


def _overhead(arm: str, to: str, seeds: Sequence[int], here: Cost, base: Cost) -> Overhead:
    per_token = None
    if here.tokens and base.tokens:
        per_token = (here.seconds_train / here.tokens) / (base.seconds_train / base.tokens) - 1
    memory = None
    if here.peak_memory_mb and base.peak_memory_mb:
        memory = here.peak_memory_mb / base.peak_memory_mb - 1
    return Overhead(
        arm,
        to,
        tuple(seeds),
        here,
        here.seconds / base.seconds - 1,
        here.seconds_rollout / base.seconds_rollout - 1,
        here.seconds_train / base.seconds_train - 1,
        memory,
        per_token,
    )


def _values(run: RunResult, key: str) -> list[float]:
    values = [v for v in run.metrics.get(key, []) if v is not None]
    return values[1:] or values
