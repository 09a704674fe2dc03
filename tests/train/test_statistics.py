"""Statistics against SciPy, printed tables, closed forms and enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from paw_train.evaluation import statistics as stats


def test_difference_interval_matches_newcombes_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 873-890, Table II: 56/70 - 48/80, method 10
    first = (48 / 80, *stats.wilson_interval(48, 80))
    second = (56 / 70, *stats.wilson_interval(56, 70))
    assert stats.difference_interval(first, second) == pytest.approx((0.0524, 0.3339), abs=6e-5)


Interval = Callable[[np.random.Generator, int], tuple[float, float]]


def _covered(monkeypatch: pytest.MonkeyPatch, truth: float, interval: Interval) -> float:
    """Share of 300 trials, with few bootstrap samples, whose interval holds the truth."""
    monkeypatch.setattr(stats, "_TABLES", 400)
    rng = np.random.default_rng(3)
    found = [interval(rng, trial) for trial in range(300)]
    return float(np.mean([low <= truth <= high for low, high in found]))


def test_paired_difference_of_successes() -> None:
    first = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0] * 4
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 0] * 4
    # per-task differences: +1 sixteen times, -1 four times, 0 twenty times
    half = stats.Z95 * math.sqrt((20 / 40 - 0.3**2) / 40)
    found = stats.paired_interval(first, second, seed=0)
    assert found == pytest.approx((0.3 - half, 0.3 + half), abs=0.05)


@pytest.mark.parametrize(("n", "successes"), [(6, 0), (6, 2), (6, 5), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int, successes: int) -> None:
    attempts = [1] * successes + [0] * (n - successes)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(attempts, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert stats.pass_at_k(n, successes, k) == pytest.approx(expected)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_and_mcnemar_are_scipys(counts: tuple[int, int]) -> None:
    successes, n = counts
    test = scipy.stats.binomtest(successes, n, 0.5)
    interval = test.proportion_ci(0.95, method="wilson")
    expected = (interval.low, interval.high)
    assert stats.wilson_interval(successes, n) == pytest.approx(expected, abs=1e-12)
    assert stats.mcnemar_exact(successes, n - successes) == pytest.approx(test.pvalue, rel=1e-9)


def test_bootstrap_is_scipys_up_to_its_draws() -> None:
    values = np.random.default_rng(4).exponential(2.0, 80)
    draws = {"n_resamples": 20_000, "rng": np.random.default_rng(1)}
    expected = scipy.stats.bootstrap((values,), np.mean, method="percentile", **draws)
    found, again, other = (stats.bootstrap_mean_interval(values, seed) for seed in (0, 0, 1))
    assert found == pytest.approx(tuple(expected.confidence_interval), abs=0.03)
    assert found == again != other


# sums of whole numbers have no rounding, by which SciPy and we would break ties otherwise
@given(st.lists(st.integers(-5000, 5000).map(float), min_size=2, max_size=9))
def test_paired_tests_and_intervals_are_scipys(values: list[float]) -> None:
    flips = scipy.stats.permutation_test(
        (values,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert stats.sign_flip_p_value(values, seed=0) == pytest.approx(flips.pvalue)
    if np.ptp(values) > 0:
        test = scipy.stats.ttest_1samp(values, 0.0)
        assert stats.paired_t_p_value(values) == pytest.approx(test.pvalue, rel=1e-9)
        interval = test.confidence_interval(0.95)
        expected = (interval.low, interval.high)
        assert stats.mean_interval(values) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_equal_differences_leave_no_doubt() -> None:
    assert stats.sign_flip_p_value([0.0, 0.0], 0) == 1.0
    assert stats.wilson_interval(0, 0) == (0.0, 1.0)  # nothing is known


def test_crossed_bootstrap_covers_seeds_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def interval(rng: np.random.Generator, trial: int) -> tuple[float, float]:
        seeds, tasks = rng.normal(0, 0.5, (5, 1)), rng.normal(0, 1.0, (1, 40))
        table = 1.0 + seeds + tasks + rng.normal(0, 1.0, (5, 40))
        return stats.crossed_bootstrap_interval(table.tolist(), trial)

    # no t quantile: somewhat optimistic at five seeds is what the docstring says
    assert 0.86 <= _covered(monkeypatch, 1.0, interval) <= 0.99


def test_crossed_bootstrap_of_one_row_is_over_tasks() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, 60).tolist()
    crossed = stats.crossed_bootstrap_interval([values], 1)
    plain = stats.bootstrap_mean_interval(values, 2)
    assert crossed == pytest.approx(plain, abs=0.03)
    assert stats.crossed_bootstrap_interval([[1.0, 1.0], [1.0, 1.0]], 0) == (1.0, 1.0)
    shifted = [value + 0.2 for value in values]  # the tasks of both are drawn together
    paired = stats.crossed_difference_interval([values], [shifted], 3)
    assert paired == pytest.approx((0.2, 0.2))


def test_holm_is_the_step_down_rule() -> None:
    # Holm 1979 by hand: 0.01 * 4, then max with 0.02 * 3, 0.03 * 2, 0.9 * 1
    assert stats.holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.wilson_interval(5, 4), "successes=5, n=4"),
        (lambda: stats.bootstrap_mean_interval([], 0), "expected at least one"),
        (lambda: stats.bootstrap_mean_interval([1.0, math.nan], 0), "finite ones"),
        (lambda: stats.paired_interval([0, 1], [1], 0), "shorter"),
        (lambda: stats.mean_interval([1.0]), "at least two"),
        (lambda: stats.paired_t_p_value([1.0]), "at least two"),
        (lambda: stats.crossed_bootstrap_interval([[1.0], [1.0, 2.0]], 0), "sequence"),
    ],
)
def test_impossible_questions_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_random_signs_of_single_tasks_are_mcnemars_test() -> None:
    many = [1.0] * 30 + [-1.0] * 15
    assert stats.sign_flip_p_value(many, 0) == pytest.approx(stats.mcnemar_exact(30, 15), abs=0.006)


def test_the_difference_of_two_tables_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    def interval(rng: np.random.Generator, trial: int) -> tuple[float, float]:
        tasks = rng.normal(0, 1.0, (1, 40))  # the same tasks for both
        first = tasks + rng.normal(0, 0.7, (4, 40))
        second = 0.3 + tasks + rng.normal(0, 0.7, (3, 40))
        return stats.crossed_difference_interval(first.tolist(), second.tolist(), trial)

    assert 0.9 <= _covered(monkeypatch, 0.3, interval) <= 1.0


def test_a_ratio_counts_units_not_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def interval(rng: np.random.Generator, trial: int) -> tuple[float, float]:
        sizes = rng.integers(1, 30, 60)
        level = rng.normal(2.0, 0.5, 60)  # tokens of one episode are alike
        return stats.ratio_interval((sizes * level).tolist(), sizes.tolist(), trial)

    assert 0.9 <= _covered(monkeypatch, 2.0, interval) <= 0.99
    assert stats.ratio_interval([4.0, 6.0], [2, 3], 0) == (2.0, 2.0)
