"""Statistics against printed tables, closed forms and brute-force enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_train import statistics as stats


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
