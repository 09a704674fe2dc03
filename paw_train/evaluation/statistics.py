"""Intervals and comparisons of success rates: pure functions, no torch, every random one takes a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution: half of a two-sided 95 % interval"""

_TAIL = (1 - 0.95) / 2
_CHUNK = 1_000_000
"""resampled values held in memory at a time"""
_MEANS, _TABLES, _SIGNS = 10_000, 4_000, 20_000
"""bootstrap samples of a mean, and of a table or a ratio; random signs that are tried"""


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a success rate (Wilson, JASA 22, 1927); (0, 1) for no trials.

    SciPy has it for whole numbers of successes only; those of several runs over a panel are means.
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
    """95 % interval of ``second - first`` for two independent rates, each (rate, low, high) by Wilson.

    Source: Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10.
    """
    rate_1, low_1, high_1 = first
    rate_2, low_2, high_2 = second
    difference = rate_2 - rate_1
    down = math.hypot(rate_2 - low_2, high_1 - rate_1)
    up = math.hypot(high_2 - rate_2, rate_1 - low_1)
    return max(-1.0, difference - down), min(1.0, difference + up)


def mean_rate_interval(rates: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """95 % interval of the plain mean of several independent rates, each (rate, low, high).

    The distances of a mean from its limits are those of its parts, added as squares. Source: Zou and
    Donner, Statistics in Medicine 27 (2008) 1693-1702.
    """
    mean = sum(rate for rate, _, _ in rates) / len(rates)
    below = math.sqrt(sum((rate - low) ** 2 for rate, low, _ in rates)) / len(rates)
    above = math.sqrt(sum((high - rate) ** 2 for rate, _, high in rates)) / len(rates)
    return max(mean - below, 0.0), min(mean + above, 1.0)


def bootstrap_mean_interval(values: Sequence[float] | np.ndarray, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean.

    Below about ten values it is too narrow, and a constant sample gives an interval of width 0. Source:
    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    sample = np.asarray(values, float)
    if not len(sample) or not np.isfinite(sample).all():
        raise ValueError("expected at least one number, and finite ones.")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(sample))
    means = [
        sample[generator.integers(0, len(sample), (min(rows, _MEANS - done), len(sample)))].mean(1)
        for done in range(0, _MEANS, rows)
    ]
    return _percentiles(np.concatenate(means))


def mcnemar_exact(improved: int, worsened: int) -> float:
    """Two-sided p-value of McNemar, Psychometrika 12 (1947), with the exact binomial tail."""
    n = improved + worsened
    tail = sum(math.comb(n, i) for i in range(min(improved, worsened) + 1))
    return min(1.0, 2 * tail / (1 << n))


def paired_interval(
    first: Sequence[float], second: Sequence[float], seed: int
) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of second - first; pairs remove the tasks' difficulty.

    Args:
        first: [N] success (0 or 1), score or return of each task of the panel.
        second: [N] the same of the other run, in the same order of tasks.
    """
    pairs = zip(first, second, strict=True)
    return bootstrap_mean_interval([b - a for a, b in pairs], seed)


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of ``k`` attempts at a task succeeds.

    ``1 - C(n - c, k) / C(n, k)`` for c successes in n attempts, 1 <= k <= n. Source: Chen et al., arXiv
    2107.03374, Eq. 1.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % t interval of a mean over seeds, two or more: exact for normal values, however few."""
    interval = _t_test(values).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def paired_t_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value that paired differences, one per seed and not all equal, have mean 0."""
    return float(_t_test(differences).pvalue)


def _t_test(values: Sequence[float]) -> Any:
    if len(values) < 2:
        raise ValueError("a t test or interval over seeds needs at least two of them.")
    from scipy.stats import ttest_1samp  # here: evaluation alone is installed without SciPy

    return ttest_1samp(values, 0.0)


def crossed_bootstrap_interval(values: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of a table of seeds x tasks, both resampled.

    So it also covers the choice of the tasks. Deviations from the mean are widened by sqrt(n / (n - 1)), n
    the number of seeds, which a bootstrap of few seeds lacks; below five seeds it stays optimistic, since
    it has no t quantile. Source: Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1 (2007).

    Args:
        values: [S, N] one row a seed, one column a task; successes, or differences of successes.
    """
    table = np.asarray(values, float)
    seeds, tasks = table.shape
    generator = np.random.default_rng(seed)
    rows, columns = _counts(generator, seeds), _counts(generator, tasks)
    means = ((rows @ table) * columns).sum(1) / (seeds * tasks)
    low, high = _widened(means, float(table.mean()), seeds)
    bound = float(np.abs(table).max())
    return max(low, -bound), min(high, bound)


def crossed_difference_interval(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], seed: int
) -> tuple[float, float]:
    """95 % bootstrap interval of ``mean(second) - mean(first)``, two tables of seeds x the same tasks.

    The tasks of both are resampled together, their seeds separately; deviations are widened as in
    ``crossed_bootstrap_interval``, for the smaller number of seeds.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    generator = np.random.default_rng(seed)
    columns = _counts(generator, a.shape[1])
    means = [
        ((_counts(generator, len(table)) @ table) * columns).sum(1) / table.size for table in (a, b)
    ]
    centre = float(b.mean() - a.mean())
    return _widened(means[1] - means[0], centre, min(len(a), len(b)))


def _counts(generator: np.random.Generator, n: int) -> np.ndarray:
    """[_TABLES, n] how often each of n units is in a bootstrap sample of size n."""
    return np.asarray(generator.multinomial(n, np.full(n, 1 / n), _TABLES))


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
    """
    sample = np.asarray(differences, float)
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
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)
    samples = _counts(np.random.default_rng(seed), len(top))  # samples of nothing are left out
    counts = samples @ bottom
    return _percentiles((samples @ top)[counts > 0] / counts[counts > 0])


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are: the chance of any false finding stays below the level.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    found = np.asarray(p_values, float)
    order = found.argsort(kind="stable")
    scaled = np.arange(len(found), 0, -1) * found[order]
    found[order] = np.maximum.accumulate(np.minimum(scaled, 1.0))
    return [*map(float, found)]


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL])
    return float(low), float(high)
