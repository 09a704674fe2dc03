"""Intervals and comparisons of success rates: pure functions, no torch, every random one takes a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution: half of a two-sided 95 % interval"""

_CHUNK = 1_000_000
"""resampled values held in memory at a time"""
_MEANS, _TABLES, _SIGNS = 10_000, 4_000, 20_000
"""bootstrap samples of a mean, and of a table or a ratio; random signs that are tried"""


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a success rate: (low, high) in [0, 1].

    Source: Wilson, JASA 22 (1927). SciPy has it for whole numbers of successes only; those of several
    runs over a panel are means.

    Args:
        successes: of the trials, in [0, n].
        n: trials; 0 gives (0, 1), since nothing is known.
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes={successes}, n={n}.")
    if n == 0:
        return 0.0, 1.0
    rate, z = successes / n, Z95
    shrink = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def difference_interval(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float]:
    """95 % interval of ``second - first`` for two success rates, from the interval of each.

    The rates are taken as independent; ``paired_difference`` uses the pairs of one panel's tasks.
    Source: Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10.

    Args:
        first: (rate, low, high) with the Wilson interval, fractions.
        second: the same of the other rate.

    Returns:
        (low, high) in [-1, 1].
    """
    rate_1, low_1, high_1 = first
    rate_2, low_2, high_2 = second
    difference = rate_2 - rate_1
    down = math.hypot(rate_2 - low_2, high_1 - rate_1)
    up = math.hypot(high_2 - rate_2, rate_1 - low_1)
    return max(-1.0, difference - down), min(1.0, difference + up)


def mean_rate_interval(rates: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """95 % interval of the plain mean of several independent rates, from the interval of each.

    The distances of a mean from its limits are those of its parts, added as squares. Source: Zou and
    Donner, Statistics in Medicine 27 (2008) 1693-1702.

    Args:
        rates: (rate, low, high) of each part, fractions; one or more.

    Returns:
        (low, high), fractions in [0, 1].
    """
    if not rates:
        raise ValueError("expected at least one rate.")
    for rate, low, high in rates:
        if not low <= rate <= high:
            raise ValueError(f"the rate {rate} is not inside its interval [{low}, {high}].")
    mean = sum(rate for rate, _, _ in rates) / len(rates)
    below = math.sqrt(sum((rate - low) ** 2 for rate, low, _ in rates)) / len(rates)
    above = math.sqrt(sum((high - rate) ** 2 for rate, _, high in rates)) / len(rates)
    return max(mean - below, 0.0), min(mean + above, 1.0)


def bootstrap_mean_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean.

    Below about ten values it is too narrow, and a constant sample gives an interval of width 0. Source:
    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    Args:
        values: [N] one number per independent unit (task or episode), N >= 1.
    """
    sample = _finite_array(values, "values")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(sample))
    means = [
        sample[generator.integers(0, len(sample), (min(rows, _MEANS - done), len(sample)))].mean(1)
        for done in range(0, _MEANS, rows)
    ]
    return _percentiles(np.concatenate(means))


def mcnemar_exact(improved: int, worsened: int) -> float:
    """Two-sided p-value that two policies succeed equally often on the same tasks.

    Source: McNemar, Psychometrika 12 (1947), with the exact binomial tail.
    """
    n = improved + worsened
    tail = sum(math.comb(n, i) for i in range(min(improved, worsened) + 1))
    return min(1.0, 2 * tail / (1 << n))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of a second run from a first on the same tasks."""

    n: int
    """tasks"""
    difference: float
    """mean of second - first, in the unit of the values"""
    ci95: tuple[float, float]
    """bootstrap interval of ``difference``, tasks resampled as pairs"""
    improved: int
    """tasks with a higher value in the second run"""
    worsened: int
    """tasks with a lower value in the second run"""
    p_value: float | None
    """exact McNemar where all values are 0 or 1, else ``None``"""


def paired_difference(
    first: Sequence[float], second: Sequence[float], seed: int
) -> PairedDifference:
    """Compares two runs task by task; pairs remove the difficulty of the tasks from the noise.

    Args:
        first: [N] success (0 or 1), score or return of each task of the panel.
        second: [N] the same of the other run, in the same order of tasks.
    """
    a, b = _finite_array(first, "first"), _finite_array(second, "second")
    if len(a) != len(b):
        raise ValueError(
            f"paired runs need the same tasks in the same order, got {len(a)} and {len(b)} values."
        )
    delta = b - a
    improved, worsened = int((delta > 0).sum()), int((delta < 0).sum())
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    return PairedDifference(
        n=len(delta),
        difference=float(delta.mean()),
        ci95=bootstrap_mean_interval(delta.tolist(), seed),
        improved=improved,
        worsened=worsened,
        p_value=mcnemar_exact(improved, worsened) if binary else None,
    )


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of ``k`` attempts at a task succeeds.

    ``1 - C(n - c, k) / C(n, k)`` for c successes in n attempts, 1 <= k <= n. Source: Chen et al., arXiv
    2107.03374, Eq. 1.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % t interval of a mean: exact for normal values, however few.

    Args:
        values: [N] independent values, one per seed, N >= 2.
    """
    sample = _finite_array(values, "values")
    if len(sample) < 2:
        raise ValueError("an interval over seeds needs at least two of them.")
    from scipy.special import stdtrit  # here: what needs no t distribution runs without SciPy

    half = float(stdtrit(len(sample) - 1, 0.975)) * _standard_error(sample)
    return float(sample.mean() - half), float(sample.mean() + half)


def paired_t_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value that paired differences have mean 0 (one-sample t test).

    Args:
        differences: [N] one per seed, N >= 2.

    Returns:
        The p-value; where all differences are equal, 1 if they are 0, else 0.
    """
    sample = _finite_array(differences, "differences")
    if len(sample) < 2:
        raise ValueError("a paired test over seeds needs at least two of them.")
    error, mean = _standard_error(sample), float(sample.mean())
    if error <= 1e-12 * abs(mean) or error == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    return 2 * float(stdtr(len(sample) - 1, -abs(mean) / error))


def _standard_error(sample: np.ndarray) -> float:
    return float(sample.std(ddof=1)) / math.sqrt(len(sample))


def crossed_bootstrap_interval(values: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of a table of seeds x tasks, both resampled.

    Seeds and tasks are resampled independently, and each sampled pair counts, so the interval also covers
    the choice of the tasks. Deviations from the mean are widened by sqrt(n / (n - 1)), n the number of
    seeds, which a bootstrap of few seeds lacks; for fewer than five seeds it stays optimistic, since it
    has no t quantile. Source: Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1 (2007).

    Args:
        values: [S, N] one row a seed, one column a task; successes, or differences of successes.
    """
    (table,) = _tables(values)
    seeds, tasks = table.shape
    generator = np.random.default_rng(seed)
    rows, columns = _counts(generator, seeds), _counts(generator, tasks)
    means = ((rows @ table) * columns).sum(1) / (seeds * tasks)
    low, high = _widened(means, float(table.mean()), seeds)
    bound = float(np.abs(table).max())
    return max(low, -bound), min(high, bound)


def crossed_difference_interval(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    seed: int,
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of ``mean(second) - mean(first)``, two tables of seeds x tasks.

    The tasks of both are resampled together, their seeds separately. Arguments and errors as of
    ``crossed_bootstrap_interval``; deviations are widened for the smaller number of seeds.

    Args:
        first: [S1, N] one row a seed, one column a task.
        second: [S2, N] the same tasks in the same order.
    """
    a, b = _tables(first, second)
    generator = np.random.default_rng(seed)
    tasks = a.shape[1]
    columns = _counts(generator, tasks)
    means = []
    for table in (a, b):
        rows = _counts(generator, len(table))
        means.append(((rows @ table) * columns).sum(1) / (len(table) * tasks))
    centre = float(b.mean() - a.mean())
    return _widened(means[1] - means[0], centre, min(len(a), len(b)))


def _tables(*tables: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Tables of seeds x tasks as arrays; all have the same tasks."""
    if not all(tables) or len({len(row) for table in tables for row in table}) > 1:
        raise ValueError("expected rows of equal length, one per seed.")
    return [np.stack([_finite_array(row, "values") for row in table]) for table in tables]


def _counts(generator: np.random.Generator, n: int) -> np.ndarray:
    """[_TABLES, n] how often each of n units is in a bootstrap sample of size n."""
    counts: np.ndarray = generator.multinomial(n, np.full(n, 1 / n), _TABLES)
    return counts


def _widened(values: np.ndarray, centre: float, seeds: int) -> tuple[float, float]:
    """Percentile interval whose deviations from the centre are widened for few seeds."""
    wider = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 1.0
    return _percentiles(centre + wider * (values - centre))


_EXACT_FLIPS = 16
"""all 2^n signs are tried for up to so many differences"""


def sign_flip_p_value(differences: Sequence[float], seed: int) -> float:
    """Two-sided p-value that paired differences are symmetric around 0 (permutation test).

    Exact for few differences that are not 0, else by random signs. For differences of -1, 0 and 1 it is
    McNemar's test. Source: Fisher, The Design of Experiments (1935), section 21.

    Args:
        differences: [N] one per task.
    """
    sample = _finite_array(differences, "differences")
    sample = sample[sample != 0]
    n = len(sample)
    if n == 0:
        return 1.0
    observed = abs(sample.sum()) - 1e-9 * np.abs(sample).sum()
    if n <= _EXACT_FLIPS:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float((np.abs((1 - 2 * bits) @ sample) >= observed).mean())
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // n)
    hits = 0
    for done in range(0, _SIGNS, rows):
        signs = generator.choice((-1.0, 1.0), (min(rows, _SIGNS - done), n))
        hits += int((np.abs(signs @ sample) >= observed).sum())
    return (hits + 1) / (_SIGNS + 1)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], seed: int
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of ``sum(numerators) / sum(denominators)``, units resampled.

    For means over tokens: those of one episode are anything but independent, unlike episodes.

    Args:
        numerators: [N] sum of the values in each unit.
        denominators: [N] how many there are in it, 0 or more, some above 0.
    """
    top = _finite_array(numerators, "numerators")
    bottom = _finite_array(denominators, "denominators")
    if len(top) != len(bottom) or (bottom < 0).any() or bottom.sum() == 0:
        raise ValueError(
            "expected as many numerators as denominators, these not negative and not all 0."
        )
    samples = _counts(np.random.default_rng(seed), len(top))  # samples of nothing are left out
    counts = samples @ bottom
    return _percentiles((samples @ top)[counts > 0] / counts[counts > 0])


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are: the chance of any false finding stays below the level.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).

    Args:
        p_values: [N] in [0, 1].
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - 0.95) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _finite_array(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name}: expected at least one number, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: value {int(np.argmin(np.isfinite(array)))} is not finite.")
    return array
