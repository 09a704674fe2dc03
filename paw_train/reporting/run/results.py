"""The evaluation results that a report compares, checked when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paw_train.evaluation.statistics import wilson_interval


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate with its 95 % interval, fractions in [0, 1]."""

    n: int
    rate: float
    low: float
    high: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rate:
        """Reads ``n``, ``success_rate`` and ``ci95``; without ``ci95`` the Wilson interval is computed.

        Raises:
            ValueError: a value is missing or outside its range.
        """
        n, rate = number(data.get("n")), number(data.get("success_rate"))
        if n is None or n < 1 or rate is None or not 0 <= rate <= 1:
            raise ValueError(
                f"expected n >= 1 and success_rate in [0, 1], got n={data.get('n')!r} and "
                f"success_rate={data.get('success_rate')!r}"
            )
        interval = data.get("ci95")
        if interval is None:
            low, high = wilson_interval(rate * n, int(n))
            return cls(int(n), rate, low, high)
        ends = [number(end) for end in interval] if isinstance(interval, list) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None or not 0 <= ends[0] <= ends[1] <= 1:
            raise ValueError(f"expected ci95 as [low, high] in [0, 1], got {interval!r}")
        return cls(int(n), rate, ends[0], ends[1])

    @property
    def triple(self) -> tuple[float, float, float]:
        """(rate, low, high)"""
        return self.rate, self.low, self.high

    @property
    def interval(self) -> str:
        """The ends in percent, in brackets."""
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % {self.interval}"


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation on a panel: the fields of ``result.json`` that a report shows."""

    overall: Rate
    by_type: dict[str, Rate]
    panel: str = ""
    panel_hash: str = ""
    """identifies the exact tasks; results are compared only where it is equal"""
    env_id: str = ""
    mean_steps: float | None = None
    invalid_rate: float | None = None
    mean_reward: float | None = None
    seconds: float | None = None
    errors: int = 0
    """episodes that an error of the environment ended; they count as no success"""
    successes: list[bool] | None = None
    """[n] one per task in the panel's order, where recorded"""
    scores: list[float] | None = None
    """[n] in [0, 1], in the same order, where recorded: WebShop's pay for a partial fit"""
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EvalResult:
        """Reads a result file's contents; keys beyond the contract's are optional.

        Raises:
            ValueError: the success rate, or that of a task type, is missing or impossible.
        """
        by_type = data.get("by_type") or {}
        overall = Rate.from_dict(data)
        successes = data.get("successes")
        usable = isinstance(successes, list) and len(successes) == overall.n
        return cls(
            overall=overall,
            by_type={str(name): Rate.from_dict(rate) for name, rate in by_type.items()},
            panel=str(data.get("panel") or ""),
            panel_hash=str(data.get("panel_hash") or data.get("fingerprint") or ""),
            env_id=str(data.get("env_id") or ""),
            mean_steps=number(data.get("mean_steps")),
            invalid_rate=number(data.get("invalid_rate")),
            mean_reward=number(data.get("mean_reward")),
            seconds=number(data.get("seconds")),
            errors=int(number(data.get("errors")) or 0),
            successes=[bool(s) for s in successes or []] if usable else None,
            scores=_scores(data, overall.n),
            settings=data["settings"] if isinstance(data.get("settings"), dict) else {},
        )


def _scores(data: Mapping[str, Any], n: int) -> list[float] | None:
    runs = data.get("runs")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], Mapping):
        return None  # of several seeds the report shows the success rate only
    scores = [number(score) for score in runs[0].get("scores") or []]
    found = [score for score in scores if score is not None]
    return found if len(found) == len(scores) == n else None


def number(value: Any) -> float | None:
    """A finite number, or ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
