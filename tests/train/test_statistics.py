"""Statistics against SciPy, printed tables, closed forms and brute-force enumeration."""

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


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_newcombes_table(successes: int, n: int, low: float, high: float) -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 857-872, Table I, method 3
    assert stats.wilson_interval(successes, n) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_are_where_the_score_test_just_rejects(counts: tuple[int, int]) -> None:
    successes, n = counts
    rate = successes / n
    low, high = stats.wilson_interval(successes, n)
    assert 0 <= low <= rate <= high <= 1
    for end in (low, high):
        assert (rate - end) ** 2 == pytest.approx(stats.Z95**2 * end * (1 - end) / n, abs=1e-12)


def test_wilson_without_trials_knows_nothing_and_refuses_impossible_counts() -> None:
    assert stats.wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes=5, n=4"):
        stats.wilson_interval(5, 4)


@pytest.mark.parametrize("n", [10, 30, 200])
def test_wilson_covers_the_rate_as_often_as_it_says(n: int) -> None:
    """By the binomial distribution itself: 95 % on average over rates, and never far below."""
    intervals = [stats.wilson_interval(k, n) for k in range(n + 1)]
    covered = []
    for rate in np.linspace(0.05, 0.95, 181):
        mass = [math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]
        inside = [low <= rate <= high for low, high in intervals]
        covered.append(sum(m for m, i in zip(mass, inside, strict=True) if i))
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)
    assert min(covered) > 0.88


def test_z95_is_the_normal_quantile() -> None:
    assert math.erf(stats.Z95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-15)


def test_difference_interval_matches_newcombes_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 873-890, Table II: 56/70 - 48/80, method 10
    first = (48 / 80, *stats.wilson_interval(48, 80))
    second = (56 / 70, *stats.wilson_interval(56, 70))
    assert stats.difference_interval(first, second) == pytest.approx((0.0524, 0.3339), abs=6e-5)


def test_difference_interval_mirrors_when_the_runs_are_swapped() -> None:
    a = (0.2, *stats.wilson_interval(10, 50))
    b = (0.9, *stats.wilson_interval(45, 50))
    low, high = stats.difference_interval(a, b)
    assert stats.difference_interval(b, a) == pytest.approx((-high, -low))


def test_bootstrap_agrees_with_all_resamples_of_a_small_sample() -> None:
    values = [0.0, 1.0, 4.0, 9.0]
    means = sorted(sum(draw) / 4 for draw in itertools.product(values, repeat=4))
    low, high = stats.bootstrap_mean_interval(values, seed=1, level=0.8, resamples=40_000)
    assert low == pytest.approx(means[int(0.1 * len(means))], abs=0.251)
    assert high == pytest.approx(means[int(0.9 * len(means))], abs=0.251)


def test_bootstrap_of_many_values_is_close_to_the_normal_interval() -> None:
    values = [float(i % 10) for i in range(3000)]
    deviation = math.sqrt(sum((v - 4.5) ** 2 for v in values) / 3000)
    half = stats.Z95 * deviation / math.sqrt(3000)
    interval = stats.bootstrap_mean_interval(values, seed=0, resamples=4000)
    assert interval == pytest.approx((4.5 - half, 4.5 + half), abs=0.06 * half)


def test_bootstrap_repeats_by_seed_only() -> None:
    values = [0.1 * i * i for i in range(30)]
    again = [stats.bootstrap_mean_interval(values, seed, resamples=500) for seed in (3, 3, 4)]
    assert again[0] == again[1] != again[2]


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0, math.nan], 0.95), ([1.0], 1.0)])
def test_bootstrap_refuses_what_it_cannot_answer(values: list[float], level: float) -> None:
    with pytest.raises(ValueError, match=r"values|level"):
        stats.bootstrap_mean_interval(values, seed=0, level=level)


@pytest.mark.parametrize(("improved", "worsened"), [(0, 0), (5, 0), (1, 6), (4, 4), (9, 3)])
def test_mcnemar_counts_the_outcomes_at_least_as_lopsided(improved: int, worsened: int) -> None:
    n = improved + worsened
    outcomes = [sum(flips) for flips in itertools.product((0, 1), repeat=n)]
    extreme = sum(abs(2 * heads - n) >= abs(improved - worsened) for heads in outcomes)
    assert stats.mcnemar_exact(improved, worsened) == pytest.approx(extreme / len(outcomes))


def test_paired_difference_of_successes() -> None:
    first = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0] * 4
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 0] * 4
    result = stats.paired_difference(first, second, seed=0)
    assert (result.n, result.improved, result.worsened) == (40, 16, 4)
    assert result.difference == pytest.approx(0.3)
    assert result.p_value == stats.mcnemar_exact(16, 4)
    # per-task differences: +1 sixteen times, -1 four times, 0 twenty times
    half = stats.Z95 * math.sqrt((20 / 40 - 0.3**2) / 40)
    assert result.ci95 == pytest.approx((0.3 - half, 0.3 + half), abs=0.05)


def test_the_paired_test_errs_as_seldom_as_it_says_and_finds_what_is_there() -> None:
    """Two runs on 60 simulated tasks of their own difficulties, alike and unlike."""
    rng = np.random.default_rng(1)
    alike, unlike, covered, trials = [], [], 0, 400
    for trial in range(trials):
        skill = rng.uniform(0.1, 0.7, 60)
        first, again, better = (rng.binomial(1, p).tolist() for p in (skill, skill, skill + 0.3))
        alike.append(stats.paired_difference(first, again, trial, resamples=50).p_value)
        found = stats.paired_difference(first, better, trial, resamples=400)
        unlike.append(found.p_value)
        covered += found.ci95[0] <= 0.3 <= found.ci95[1]
    for level in (0.05, 0.2):
        bound = level + 4 * math.sqrt(level * (1 - level) / trials)
        assert np.mean(np.asarray(alike) <= level) <= bound  # exact, so conservative
    assert np.mean(np.asarray(alike) <= 0.5) > 0.3
    assert np.mean(np.asarray(unlike) <= 0.05) > 0.8  # power 0.9 by the normal approximation
    assert covered / trials == pytest.approx(0.95, abs=0.045)


def test_paired_difference_uses_the_pairs() -> None:
    hard_and_easy = [0.0] * 50 + [1.0] * 50
    better = [v + 0.1 + 0.01 * (i % 2) for i, v in enumerate(hard_and_easy)]
    result = stats.paired_difference(hard_and_easy, better, seed=0)
    assert result.ci95[0] > 0.1 and result.ci95[1] < 0.11
    assert result.p_value is None and result.improved == 100


def test_paired_difference_refuses_different_panels() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        stats.paired_difference([0, 1], [1], seed=0)


@pytest.mark.parametrize(("n", "successes"), [(6, 0), (6, 2), (6, 5), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int, successes: int) -> None:
    attempts = [1] * successes + [0] * (n - successes)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(attempts, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert stats.pass_at_k(n, successes, k) == pytest.approx(expected)


def test_pass_at_k_needs_k_attempts() -> None:
    with pytest.raises(ValueError, match="pass@5"):
        stats.pass_at_k(4, 1, 5)
    assert stats.pass_at_k(5000, 1, 2500) == pytest.approx(0.5)


# --- against SciPy, where it has the same -------------------------------------------------------


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
    found = stats.bootstrap_mean_interval(values.tolist(), seed=0, resamples=20_000)
    assert found == pytest.approx(tuple(expected.confidence_interval), abs=0.03)


# whole numbers: their sums have no rounding, which SciPy and we would break ties by in our own ways
@given(st.lists(st.integers(-5000, 5000).map(float), min_size=2, max_size=9))
def test_tests_and_intervals_of_paired_differences_are_scipys(values: list[float]) -> None:
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


# --- intervals over seeds ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5])
def test_t_interval_covers_the_mean_as_often_as_it_says_even_for_two_seeds(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = rng.normal(3.0, 2.0, (4000, n))
    inside = 0
    for values in draws:
        low, high = stats.mean_interval(values.tolist())
        inside += low <= 3.0 <= high
    # 4 standard errors of a share of 4000
    assert abs(inside / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


def test_paired_p_values_are_uniform_under_the_null() -> None:
    rng = np.random.default_rng(7)
    p = [stats.paired_t_p_value(v.tolist()) for v in rng.normal(0.0, 1.0, (4000, 3))]
    for level in (0.05, 0.25, 0.5):
        share = float(np.mean(np.asarray(p) < level))
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / 4000)


def test_equal_differences_are_no_difference_or_a_certain_one() -> None:
    assert stats.paired_t_p_value([0.0, 0.0]) == 1.0
    assert stats.paired_t_p_value([0.1, 0.1, 0.1]) == 0.0


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_p_value_and_interval_agree_about_zero(values: list[float]) -> None:
    low, high = stats.mean_interval(values)
    p = stats.paired_t_p_value(values)
    if high - low > 1e-6 and min(abs(low), abs(high)) > 1e-9:
        assert (p < 0.05) == (low > 0 or high < 0)


def test_crossed_bootstrap_covers_when_both_seeds_and_tasks_are_drawn() -> None:
    rng = np.random.default_rng(3)
    inside, trials = 0, 300
    for trial in range(trials):
        seeds, tasks = rng.normal(0, 0.5, (5, 1)), rng.normal(0, 1.0, (1, 40))
        table = 1.0 + seeds + tasks + rng.normal(0, 1.0, (5, 40))
        low, high = stats.crossed_bootstrap_interval(table.tolist(), trial, resamples=400)
        inside += low <= 1.0 <= high
    # no t quantile: somewhat optimistic at five seeds is what the docstring says
    assert 0.86 <= inside / trials <= 0.99


def test_crossed_bootstrap_of_one_row_is_the_bootstrap_over_tasks() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, 60).tolist()
    crossed = stats.crossed_bootstrap_interval([values], 1)
    plain = stats.bootstrap_mean_interval(values, 2)
    assert crossed == pytest.approx(plain, abs=0.03)
    assert stats.crossed_bootstrap_interval([[1.0, 1.0], [1.0, 1.0]], 0) == (1.0, 1.0)


def test_holm_is_the_step_down_rule() -> None:
    # Holm 1979 by hand: 0.01 * 4, then max with 0.02 * 3, 0.03 * 2, 0.9 * 1
    assert stats.holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.mean_interval([1.0]),
        lambda: stats.mean_interval([1.0, math.nan]),
        lambda: stats.mean_interval([1.0, 2.0], 1.5),
        lambda: stats.paired_t_p_value([1.0]),
        lambda: stats.crossed_bootstrap_interval([[1.0], [1.0, 2.0]], 0),
        lambda: stats.crossed_bootstrap_interval([], 0),
    ],
)
def test_impossible_questions_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


def test_signs_of_single_tasks_are_mcnemars_test() -> None:
    for better, worse in ((3, 0), (5, 2), (9, 4), (1, 1)):
        differences = [1.0] * better + [-1.0] * worse + [0.0] * 7
        assert stats.sign_flip_p_value(differences, 0) == pytest.approx(
            stats.mcnemar_exact(better, worse)
        )
    many = [1.0] * 30 + [-1.0] * 15
    assert stats.sign_flip_p_value(many, 0) == pytest.approx(stats.mcnemar_exact(30, 15), abs=0.006)
    assert stats.sign_flip_p_value([0.0, 0.0], 0) == 1.0


def test_sign_flips_find_nothing_where_nothing_is() -> None:
    rng = np.random.default_rng(5)
    p = []
    for trial in range(400):
        skill = rng.uniform(0, 1, 30)
        one, two = (rng.binomial(3, skill) / 3 for _ in range(2))
        p.append(stats.sign_flip_p_value((two - one).tolist(), trial, resamples=400))
    for level in (0.05, 0.2):
        share = float(np.mean(np.asarray(p) <= level))
        assert share < level + 4 * math.sqrt(level * (1 - level) / 400)
    assert float(np.mean(np.asarray(p) <= 0.5)) > 0.3  # and they are no ones


def test_the_difference_of_two_tables_is_covered() -> None:
    rng = np.random.default_rng(11)
    inside, trials = 0, 300
    for trial in range(trials):
        tasks = rng.normal(0, 1.0, (1, 40))  # the same tasks for both
        first = tasks + rng.normal(0, 0.7, (4, 40))
        second = 0.3 + tasks + rng.normal(0, 0.7, (3, 40))
        low, high = stats.crossed_difference_interval(
            first.tolist(), second.tolist(), trial, resamples=400
        )
        inside += low <= 0.3 <= high
    assert 0.9 <= inside / trials <= 1.0


def test_the_difference_of_a_table_to_itself_with_one_seed_is_paired() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, 50)
    shifted = (values + 0.2).tolist()
    low, high = stats.crossed_difference_interval([values.tolist()], [shifted], 3)
    assert (low, high) == pytest.approx((0.2, 0.2))  # tasks are drawn together


def test_a_ratio_counts_units_not_tokens() -> None:
    rng = np.random.default_rng(2)
    inside, trials = 0, 300
    for trial in range(trials):
        sizes = rng.integers(1, 30, 60)
        level = rng.normal(2.0, 0.5, 60)  # tokens of one episode are alike
        low, high = stats.ratio_interval(
            (sizes * level).tolist(), sizes.tolist(), trial, resamples=400
        )
        inside += low <= 2.0 <= high
    assert 0.9 <= inside / trials <= 0.99
    assert stats.ratio_interval([4.0, 6.0], [2, 3], 0) == (2.0, 2.0)
    with pytest.raises(ValueError, match="not all 0"):
        stats.ratio_interval([0.0], [0], 0)
