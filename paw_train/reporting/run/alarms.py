"""Alarms of a training run: rules on its measurements that detect what goes wrong.

Pure functions of the records in ``metrics.jsonl``. Rules compare means over windows of updates, and a
change has to exceed the noise between neighbouring updates, so that a noisy healthy run raises no alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paw_train.metrics import number

WINDOW = 8
"""updates that are averaged; the first alarm is possible after two windows"""
_STANDARD_ERRORS = 5.5
"""standard errors that a change has to exceed: the best of hundreds of windows is compared with the worst.
With 5.5, 750 simulated runs of 500 updates at constant success raised no alarm; with 5, ten did"""
_LEAST_SUCCESS = 0.1
"""success below which there can be no collapse"""
_LEAST_INVALID = 0.1
"""share of invalid actions below which a doubling does not matter"""
_ENTROPY_LEFT = 0.05
"""share of its highest mean at which the action entropy counts as vanished"""
_EQUAL = 0.97
"""share of groups with equal returns at which nothing is left to learn from"""
_PENALTIES = 0.2
"""share of advantages due to penalties alone from which penalties dominate"""
_SOLVED = 0.9
"""success from which low entropy and equal groups are expected"""
GAP = 0.4
"""difference from which success on other tasks counts as far below that on training tasks"""
_NEAR_ONE = 0.97
"""world-model loss from which nearly every token has p near 0"""
_STILL = 0.01
"""most that the loss may fall from one window to the next to count as unchanged"""
_NLL_LEFT = 0.95
"""share of its mean one window before that the observation NLL keeps if nothing is learned"""
_BOUNDED = ("cmae", "mae")
"""world-model losses in [0, 1] whose gradient has the factor p"""

Array = NDArray[np.float64]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A stretch of updates over which a rule held."""

    title: str
    text: str
    """the numbers, in a sentence"""
    first: int
    """update at which it was raised"""
    last: int
    """last update at which it held"""
    ongoing: bool
    """whether it holds at the newest update"""


def recent_success(records: Records) -> float | None:
    """Mean success in training over the last window of updates, or over all if there are fewer."""
    rates = [number(record.get("success_rate")) for record in records[-WINDOW:]]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def find_alarms(records: Records, wm_loss: str | None = None) -> list[Alarm]:
    """The alarms of a run so far, in the order in which they were raised.

    Args:
        records: of ``metrics.jsonl``, by update; a measurement that a record lacks is skipped.
        wm_loss: the run's world-model loss (``cmae``, ...); ``None``: it has none.
    """
    found = [*_success(records), *_invalid(records), *_entropy(records), *_groups(records)]
    found += _penalties(records) + _validation(records)
    if wm_loss in _BOUNDED:
        found += _world_model(records)
    return sorted(found, key=lambda alarm: alarm.first)


def loss_name(config: Mapping[str, Any]) -> str | None:
    """The world-model loss that a run's settings (``config.json``) ask for; ``None`` without one."""
    world_model = config.get("world_model")
    if not isinstance(world_model, Mapping) or world_model.get("enabled") is False:
        return None
    loss = world_model.get("loss")
    return loss if isinstance(loss, str) else None


# --- rules --------------------------------------------------------------------------------------


def _success(records: Records) -> list[Alarm]:
    series = _Windows(records, "success_rate")
    best, place = series.past(np.maximum)
    now = series.means
    holds = (best >= _LEAST_SUCCESS) & (now <= best / 2) & series.differs(best)

    def text(at: int) -> str:
        was = f"{_percent(best[at])} over {series.span(place[at])}"
        return f"{_percent(now[at])} over {series.span(at)}; it was {was}."

    return series.stretches("Success has collapsed", holds, text)


def _invalid(records: Records) -> list[Alarm]:
    series = _Windows(records, "invalid_rate")
    least, place = series.past(np.minimum)
    now = series.means
    holds = (now >= _LEAST_INVALID) & (now >= 2 * least) & series.differs(least)

    def text(at: int) -> str:
        was = f"{_percent(least[at])} over {series.span(place[at])}"
        return f"{_percent(now[at])} of actions over {series.span(at)}; it was {was}."

    return series.stretches("Invalid actions have doubled", holds, text)


def _entropy(records: Records) -> list[Alarm]:
    measured = any(number(r.get("entropy")) is not None for r in records)
    series = _Windows(records, "entropy" if measured else "entropy_mean", "success_rate")
    most, place = series.past(np.maximum)
    now = series.means
    holds = (now <= _ENTROPY_LEFT * most) & series.differs(most) & (series.second < _SOLVED)

    def text(at: int) -> str:
        return (
            f"{now[at]:.2g} nats over {series.span(at)}; it was {most[at]:.2g} over "
            f"{series.span(place[at])}. The policy has stopped exploring, with "
            f"{_percent(series.second[at])} success."
        )

    return series.stretches("Action entropy has vanished", holds, text)


def _groups(records: Records) -> list[Alarm]:
    series = _Windows(records, "equal_groups", "success_rate")
    holds = (series.means >= _EQUAL) & (series.second < _SOLVED)

    def text(at: int) -> str:
        return (
            f"In {_percent(series.means[at])} of the groups over {series.span(at)} all returns are "
            "equal: their advantages are zero, so the policy gets no gradient from them."
        )

    return series.stretches("Groups do not differ in return", holds, text)


def _penalties(records: Records) -> list[Alarm]:
    series = _Windows(records, "penalty_share", "success_rate")
    holds = (series.means >= _PENALTIES) & (series.second < _SOLVED)

    def text(at: int) -> str:
        return (
            f"{_percent(series.means[at])} of the advantages over {series.span(at)} are in groups whose "
            "episodes differ in penalties alone: the policy learns to avoid penalties there, not to "
            "succeed. algorithm.normalize=batch does not scale them up; env.invalid_when=malformed lets "
            "refused actions cost nothing."
        )

    return series.stretches("Penalties outweigh success", holds, text)


def _validation(records: Records) -> list[Alarm]:
    found: list[Alarm] = []
    below = False
    for at, record in enumerate(records):
        validated, update = number(record.get("validation")), number(record.get("update"))
        training = recent_success(records[max(0, at + 1 - WINDOW) : at + 1])
        if validated is None or update is None or training is None:
            continue
        was_below, below = below, training - validated >= GAP
        if below:
            text = (
                f"{_percent(validated)} of the validation tasks after update {update:.0f}, "
                f"{_percent(training)} of the training tasks: what is learned does not carry over."
            )
            first = found.pop().first if was_below else int(update)
            found.append(Alarm("Validation is far below training", text, first, int(update), True))
    return [replace(alarm, ongoing=below and alarm is found[-1]) for alarm in found]


def _world_model(records: Records) -> list[Alarm]:
    series = _Windows(records, "wm_loss", "obs_nll")
    before, nll_before = _one_before(series.means), _one_before(series.second)
    # a falling loss or a falling NLL shows learning, however high the loss still is
    holds = (np.minimum(series.means, before) >= _NEAR_ONE) & (series.means > before - _STILL)
    holds &= series.second >= _NLL_LEFT * nll_before
    holds &= series.errors() <= _STILL  # otherwise noise hides whether it falls

    def text(at: int) -> str:
        return (
            f"{series.means[at]:.3f} over {series.span(at)}: next-observation tokens have p near 0, "
            "where the gradient of this loss vanishes with p, so it cannot learn them. "
            "world_model.loss=ce, or learning the world model before RL, has no such limit."
        )

    return series.stretches("World-model loss stays near 1", holds, text)


# --- windows ------------------------------------------------------------------------------------


class _Windows:
    """Running means of a measurement, and of a ``second``; window ``i`` begins with value ``i``."""

    def __init__(self, records: Records, name: str, second: str = "") -> None:
        rows = [
            (int(update), value, number(r.get(second)) or 0.0)
            for r in records
            if (update := number(r.get("update"))) is not None
            and (value := number(r.get(name))) is not None
        ]
        self.updates = [update for update, *_ in rows]
        self.values = np.array([value for _, value, _ in rows], dtype=np.float64)
        self.means = _means(self.values)
        self.second = _means(np.array([other for *_, other in rows], dtype=np.float64))

    def past(self, extreme: np.ufunc) -> tuple[Array, NDArray[np.int64]]:
        """For each window, the extreme mean among those that ended before it began, and its window.

        NaN while there is none: comparisons with it are false.
        """
        running = extreme.accumulate(self.means)
        reached = np.where(self.means == running, np.arange(len(running)), 0)
        place = np.zeros(len(running), dtype=np.int64)
        place[WINDOW:] = np.maximum.accumulate(reached)[:-WINDOW]
        return _one_before(running), place

    def errors(self) -> Array:
        """Standard error of the difference of two windows' means (von Neumann: a trend hardly affects it)."""
        squares = np.cumsum(np.diff(self.values) ** 2)[WINDOW - 2 :]
        variance = squares / (2 * np.arange(WINDOW - 1, len(self.values)))
        return np.asarray(np.sqrt(2 * variance / WINDOW))

    def differs(self, other: Array) -> NDArray[np.bool_]:
        """True where a mean differs more from another window's than noise explains."""
        return np.asarray(np.abs(self.means - other) > _STANDARD_ERRORS * self.errors())

    def span(self, at: int) -> str:
        return f"updates {self.updates[at]} to {self.updates[at + WINDOW - 1]}"

    def stretches(
        self, title: str, holds: NDArray[np.bool_], text: Callable[[int], str]
    ) -> list[Alarm]:
        """One alarm for each stretch of windows; a gap shorter than a window does not end it."""
        parts: list[list[int]] = []
        for at in np.flatnonzero(holds).tolist():
            if parts and at - parts[-1][1] < WINDOW:
                parts[-1][1] = at
            else:
                parts.append([at, at])
        newest, ends = len(self.means) - 1, self.updates[WINDOW - 1 :]
        return [
            Alarm(title, text(last), ends[first], ends[last], last == newest)
            for first, last in parts
        ]


def _one_before(means: Array) -> Array:
    """The mean of the window that ended where each window began; NaN while there is none."""
    found = np.full(len(means), np.nan)
    found[WINDOW:] = means[:-WINDOW]
    return found


def _means(values: Array) -> Array:
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return np.asarray((sums[WINDOW:] - sums[:-WINDOW]) / WINDOW)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
