"""Statistics of the reports: textbook answers on data that have them, scipy's where it has the same, and dashes."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.report import coverage
from bench.report.comparison import (
    RANDOM_FLIPS,
    align,
    compare,
    corrected,
    could_be_marked,
    family,
    paired_power,
    probability_of_improvement,
    seeds_needed,
    smallest_p,
)
from bench.report.estimates import (
    RESAMPLES,
    expanded_interval,
    failure_rate,
    interquartile_mean,
    mean,
    median,
    performance_profile,
    student,
)
from bench.report.ranking import PERMUTATIONS, ranking

STATISTICS = [mean, median, interquartile_mean]
NAN = math.nan

SLEEP = (  # Student 1908: hours of sleep gained under two drugs; R's t.test(..., paired = TRUE) of them
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
)
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]  # Darwin's pairs, in Fisher 1935, section 17

scores = st.integers(-1000, 1000).map(lambda count: count / 1000)
"""As accuracies are: few different values, whose differences and sums tie up to rounding."""


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# One set of scores


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9).filter(lambda values: np.ptp(values) > 1e-6))
def test_the_mean_of_few_seeds_has_students_interval(values):
    found = mean(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), *expected))
    assert (found.method, found.unit, found.n, found.reason) == ("t", "seeds", len(values), None)


@given(st.lists(scores, min_size=3, max_size=8, unique=True), st.lists(scores, min_size=3, max_size=8, unique=True))
def test_the_mean_of_two_tasks_has_welchs_interval(first, second):
    """(a + b) / 2 is half the difference of a and -b."""
    table = np.full((8, 2), NAN)
    table[: len(first), 0], table[: len(second), 1] = first, second
    found = mean(table)
    expected = stats.ttest_ind(first, np.negative(second), equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low / 2, expected.high / 2))
    assert found.value == pytest.approx((np.mean(first) + np.mean(second)) / 2)
    assert (found.unit, found.n) == ("seeds within tasks", min(len(first), len(second)))
    assert found.missing == 16 - len(first) - len(second)


@given(st.lists(scores, min_size=1, max_size=30), st.integers(1, 3))
def test_medians_and_interquartile_means_are_numpys_and_scipys(values, tasks):
    table = np.array([np.roll(values, task) * (task + 1) for task in range(tasks)]).T
    assert interquartile_mean(table).value == pytest.approx(stats.trim_mean(table.ravel(), 0.25))
    expected = np.median(values) if tasks == 1 else np.median(table.mean(axis=0))
    assert median(table).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_bootstrap_starts_at_ten_seeds(statistic):
    assert statistic(normal(9)).method.startswith("t")
    assert statistic(normal(10)).method == "stratified bootstrap"
    few_in_one = normal(12, 2)
    few_in_one[9:, 1] = NAN
    assert statistic(few_in_one).method.startswith("t")


def test_the_bootstrap_draws_the_distribution_of_all_resamples():
    """All 5^5 resamples against random ones: a standard deviation of R draws is off by 1 / sqrt(2 R) of itself."""
    values = normal(5)
    every = np.sort(values[np.array(list(itertools.product(range(5), repeat=5)))], axis=1)
    for statistic, exact in ((median, every[:, 2]), (interquartile_mean, every[:, 1:4].mean(axis=1))):
        found = statistic(values)
        error = (found.high - found.low) / 2 / stats.t.ppf(0.975, 4)
        assert error == pytest.approx(exact.std() * math.sqrt(5 / 4), rel=5 / math.sqrt(2 * RESAMPLES))


def test_of_the_mean_the_bootstrapped_t_interval_would_be_students():
    """The interquartile mean of three is their mean."""
    found, expected = interquartile_mean(normal(3)), mean(normal(3))
    assert found.value == expected.value
    assert found.high - found.low == pytest.approx(expected.high - expected.low, rel=5 / math.sqrt(2 * RESAMPLES))


@pytest.mark.parametrize("statistic", STATISTICS)
def test_bootstrapped_intervals_are_scipys_at_the_expanded_level(statistic):
    values = stats.expon.ppf((np.arange(30) + 0.5) / 30)
    plain = {mean: np.mean, median: np.median, interquartile_mean: lambda x, axis: stats.trim_mean(x, 0.25, axis)}
    level = 1 - 2 * stats.norm.cdf(-math.sqrt(30 / 29) * stats.t.ppf(0.975, 29))
    result = stats.bootstrap((values,), plain[statistic], confidence_level=level, method="percentile",
                             n_resamples=20_000, random_state=1)  # fmt: skip
    found = statistic(values)
    # a quantile at p of R draws is off by sqrt(p (1 - p) / R) / density: .16 of their deviation, for a normal's density
    tolerance = 5 * math.sqrt(0.025 * 0.975 / RESAMPLES) / stats.norm.pdf(1.96) * result.standard_error
    assert (found.low, found.high) == pytest.approx(tuple(result.confidence_interval), abs=tolerance)


@pytest.mark.parametrize("sizes", [[10], [30], [12, 10, 11]])
def test_expanded_quantiles_are_further_out(sizes):
    n, freedom = min(sizes), sum(sizes) - len(sizes)
    low, high = expanded_interval(np.linspace(0, 1, 10_001), sizes, 0.95)
    assert low == pytest.approx(stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, freedom)))
    assert (low < 0.025, high) == (True, pytest.approx(1 - low))


def test_the_median_of_tasks_has_the_freedom_of_the_one_that_it_hangs_on():
    table = normal(5, 3) + np.array([-50, 0, 50])
    found, middle = median(table), mean(table[:, 1])
    assert found.value == middle.value
    assert found.high - found.low == pytest.approx(middle.high - middle.low, rel=5 / math.sqrt(2 * RESAMPLES))


def test_seeds_are_resampled_within_tasks():
    """Tasks that lie far apart do not widen the interval; each draws seeds of its own."""
    table = normal(12, 4)
    assert mean(table + np.array([0, 100, 200, 300])).high - 150 == pytest.approx(mean(table).high)
    alike = np.repeat(normal(12, 1), 4, axis=1)
    one, four = mean(alike[:, 0]), mean(alike)
    assert (four.high - four.low) / (one.high - one.low) == pytest.approx(
        0.5, abs=0.08
    )  # 1 / sqrt(4), and t(44), t(11)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_one_seed_has_no_interval(statistic):
    found = statistic([0.7])
    assert (found.value, found.low, found.high, found.method) == (0.7, None, None, None)
    assert found.reason == "one seed"
    second_task = statistic([[0.7, 0.2], [0.8, NAN], [0.9, NAN]])
    assert (second_task.low, second_task.reason, second_task.n, second_task.missing) == (None, "one seed", 1, 2)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("empty", [[], [NAN, NAN], [[0.1, NAN], [0.2, NAN]]])
def test_without_values_there_is_no_number(statistic, empty):
    found = statistic(empty)
    assert (found.value, found.low, found.high, found.n, found.reason) == (None, None, None, 0, "no value")
    assert found.missing == np.isnan(empty).sum()


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("n", [3, 12])
def test_equal_scores_have_no_interval_of_width_zero(statistic, n):
    values = np.full(n, 0.1)
    values[0] = 0.1 + 1e-17 + 2**-56  # what summing in another order leaves
    found = statistic(values)
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high, found.reason) == (None, None, "no spread between seeds")


def test_a_partial_set_is_counted():
    found = mean([0.5, NAN, 0.7, 0.6])
    assert (found.value, found.n, found.missing) == (pytest.approx(0.6), 3, 1)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_scores_of_no_meaning_are_errors(statistic):
    with pytest.raises(ValueError, match="infinite"):
        statistic([1.0, math.inf])
    for shape in ((), (2, 0), (2, 2, 2)):
        with pytest.raises(ValueError, match="scores are"):
            statistic(np.zeros(shape))


def test_failure_rates_have_wilsons_interval():
    found = failure_rate(81, 263)  # Newcombe 1998
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert (found.value, found.method, found.unit, found.n) == (81 / 263, "Wilson", "runs", 263)
    assert failure_rate(0, 0).value is None
    with pytest.raises(ValueError, match="failures in"):
        failure_rate(2, 1)


def test_a_profile_is_the_share_of_runs_above_a_threshold():
    table = np.array([[0.1, 0.5], [0.2, 0.5], [0.3, 0.9], [0.4, 0.9], [0.5, 0.9]])
    found = performance_profile(table, [0.0, 0.2, 0.5, 1.0])
    assert found.share == pytest.approx([1, (0.6 + 1) / 2, (0 + 0.6) / 2, 0])  # above, not at
    assert (found.low <= found.share).all()
    assert (found.share <= found.high).all()
    assert found.low[1] < 0.8 < found.high[1]
    assert (found.unit, found.n) == ("seeds within tasks", 5)
    assert performance_profile(table[:4], [0.2]) is None
    assert performance_profile(table, []).share.shape == (0,)


def test_a_task_with_more_seeds_has_no_more_weight_in_a_profile():
    table = np.full((15, 2), NAN)
    table[:5, 0], table[:, 1] = 0.0, 1.0
    found = performance_profile(table, [0.5])
    assert (found.share[0], found.n, found.missing) == (0.5, 5, 10)


# Two, paired by seed


def test_the_sleep_of_ten_patients():
    found = compare(*SLEEP)
    assert found.difference == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=5e-8)
    assert found.p == 4 / 1024  # nine gained, one did not change
    assert found.effect_size * math.sqrt(10) == pytest.approx(4.0621, abs=5e-5)
    assert found.correlation == pytest.approx(0.7951702, abs=5e-8)
    assert (found.n, found.left_out, found.test) == (10, 0, "sign-flip, exact")


def test_darwins_maize():
    """Fisher: of 2^15 arrangements 863 have a total of at least that observed."""
    assert compare(MAIZE, np.zeros(15)).p == 2 * 863 / 2**15


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(scores, scores), min_size=2, max_size=8))
@example([(100.915, 100.916), (100.918, 100.916), (100.929, 100.928), (100.921, 100.908), (100.918, 100.924)])
def test_the_sign_flip_test_counts_ties_that_rounding_hides(pairs):
    differences = [Fraction(round(1000 * a)) - Fraction(round(1000 * b)) for a, b in pairs]
    flips = itertools.product((1, -1), repeat=len(pairs))
    totals = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    expected = sum(total >= abs(sum(differences)) for total in totals) / len(totals)
    assert compare(*zip(*pairs, strict=True)).p == expected


def test_beyond_sixteen_seeds_flips_are_drawn():
    differences = np.random.default_rng(0).integers(-5, 10, 20)
    ways = np.array([1])  # to each total of 20 signed differences, by convolution
    for size in np.abs(differences):
        step = np.zeros(2 * size + 1, int)
        step[0] += 1
        step[-1] += 1
        ways = np.convolve(ways, step)
    exact = ways[np.abs(np.arange(len(ways)) - len(ways) // 2) >= abs(differences.sum())].sum() / 2**20
    found = compare(differences, np.zeros(20))
    assert found.test == "sign-flip, 100,000 random flips"
    assert 0.01 < exact < 0.2
    assert found.p == pytest.approx(exact, abs=5 * 2 * math.sqrt(exact / 2 / RANDOM_FLIPS))  # twice a one-sided share
    assert compare(differences, np.zeros(20), seed=1).p != found.p


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(scores, scores), min_size=2, max_size=8))
def test_the_other_way_round_only_signs_change(pairs):
    first, second = zip(*pairs, strict=True)
    there, back = compare(first, second), compare(second, first)
    assert back.difference == -there.difference
    assert (back.p, back.more_seeds) == (there.p, there.more_seeds)
    assert back.correlation == pytest.approx(there.correlation)
    if there.low is None:
        assert back.low is back.high is there.high is there.effect_size is None
    else:
        assert (-back.high, -back.low) == pytest.approx((there.low, there.high))
        assert back.effect_size == -there.effect_size


@pytest.mark.parametrize(("n", "least"), [(2, 0.5), (3, 0.25), (5, 0.0625), (10, 2 / 1024), (16, 2**-15)])
def test_few_seeds_cannot_reach_small_p(n, least):
    found = compare(np.arange(1, n + 1), np.zeros(n))
    assert found.p == found.smallest_p == smallest_p(n) == least


def test_random_flips_cannot_either():
    found = compare(np.arange(1, 41), np.zeros(40))
    assert found.p == found.smallest_p == 2 / 100_001


def test_only_seeds_that_both_have_are_paired():
    first, second = align({0: 0.5, 1: 0.6, 2: NAN, 5: 0.9}, {1: 0.4, 0: 0.1, 2: 0.3, 7: None, 8: 1.0})
    found = compare(first, second)
    assert (found.n, found.left_out) == (2, 4)
    assert found.difference == pytest.approx((0.4 + 0.2) / 2)
    with pytest.raises(ValueError, match="scores by seed"):
        compare([0.1, 0.2], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="infinite"):
        compare([0.1, math.inf], [0.1, 0.2])


def test_one_pair_has_a_difference_and_nothing_else():
    found = compare([0.75, 0.5], [0.5, NAN])
    assert (found.difference, found.n, found.left_out, found.reason) == (0.25, 1, 1, "one seed")
    assert {found.low, found.high, found.p, found.smallest_p, found.test, found.effect_size, found.correlation,
            found.more_seeds} == {None}  # fmt: skip
    nothing = compare([0.75, NAN], [NAN, 0.5])
    assert (nothing.difference, nothing.n, nothing.left_out, nothing.reason) == (None, 0, 2, "no value")


def test_differences_that_are_all_equal_have_shown_no_spread():
    """0.8 - 0.7 and 0.9 - 0.8 differ in their last bit."""
    found = compare([0.8, 0.9, 0.5], [0.7, 0.8, 0.4])
    assert found.difference == pytest.approx(0.1)
    assert (found.low, found.high, found.effect_size, found.more_seeds) == (None, None, None, None)
    assert (found.p, found.reason) == (0.25, "no spread between seeds")


def test_no_difference_needs_no_number_of_seeds():
    equal = compare([0.8, 0.9], [0.8, 0.9])
    assert (equal.difference, equal.p, equal.low, equal.effect_size, equal.more_seeds) == (0, 1, None, None, None)
    cancelling = compare([0.3, 0.1, 0.2], [0.1, 0.2, 0.3])  # +.2, -.1, -.1: their sum in floats is not 0
    assert (cancelling.difference, cancelling.effect_size, cancelling.more_seeds, cancelling.p) == (0, 0, None, 1)
    assert cancelling.low == -cancelling.high
    zeros = compare([0.0, 0.0], [0.0, 0.0])
    assert (zeros.difference, zeros.p) == (0, 1)


def test_the_correlation_is_pearsons_where_there_is_one():
    first, second = normal(2, 7)
    assert compare(first, second).correlation == pytest.approx(stats.pearsonr(first, second).statistic)
    assert compare(first[:2], second[:2]).correlation is None  # always 1 or -1
    assert compare(np.full(7, 0.1), second).correlation is None


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (-0.5, 34)])
def test_seeds_for_a_power_of_80_percent_are_those_of_published_tables(effect, pairs):
    """G*Power 3: two-tailed, difference of two dependent means, alpha .05."""
    assert seeds_needed(effect) == pairs


@given(st.floats(1e-3, 1e6), st.sampled_from([0.05, 0.01]), st.sampled_from([0.8, 0.9]))
@example(4.5625, 0.01, 0.8)  # where the far tail of the noncentral t has no value
def test_one_seed_fewer_would_not_do(effect, alpha, power):
    n = seeds_needed(effect, alpha, power)
    assert paired_power(effect, n, alpha) >= power
    assert n == 2 or paired_power(effect, n - 1, alpha) < power


def test_power_is_how_often_the_t_test_rejects():
    for effect, n in ((0.0, 5), (0.3, 10), (1.5, 4)):
        drawn = normal(20_000, n) + effect
        rejected = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue <= 0.05)
        power = paired_power(effect, n)
        assert rejected == pytest.approx(power, abs=4 * math.sqrt(power * (1 - power) / 20_000))


def test_very_small_effects_need_very_many_seeds():
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert seeds_needed(1e-4) == pytest.approx((z / 1e-4) ** 2, rel=3e-6)  # 1e-6 of the power is on the other side
    assert seeds_needed(1e-9) == pytest.approx((z / 1e-9) ** 2)
    assert seeds_needed(0) is None


def test_more_seeds_are_those_that_are_not_there():
    differences = np.array([-1.0, 0.0, 1.0, 2.0, 3.0])  # d_z = 1 / sqrt(2.5)
    found = compare(differences, np.zeros(5))
    assert found.more_seeds == seeds_needed(1 / math.sqrt(2.5)) - 5 > 0
    assert compare(differences + 9, np.zeros(5)).more_seeds == 0
    assert compare(differences, np.zeros(5), alpha=0.01, power=0.9).more_seeds > found.more_seeds


# Many at once


def test_corrections_are_those_of_textbooks():
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.01, 0.04, 0.03, 0.005], "benjamini-hochberg") == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert corrected([0.9, 0.8]) == [1, 1]
    published = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
                 0.6528, 0.7590, 1.0]  # fmt: skip
    for method, rejected in (("holm", 3), ("benjamini-hochberg", 4)):  # Benjamini and Hochberg 1995, section 3.2
        assert sum(value <= 0.05 for value in corrected(published, method)) == rejected


@given(st.lists(st.one_of(st.none(), st.integers(0, 64).map(lambda count: count / 64)), max_size=12))
def test_holm_marks_what_stepping_down_rejects(values):
    order = sorted((value, i) for i, value in enumerate(values) if value is not None)
    rejected = set()
    for step, (value, i) in enumerate(order):
        if value > 0.05 / (len(order) - step):
            break
        rejected.add(i)
    found = corrected(values)
    assert {i for i, value in enumerate(found) if value is not None and value <= 0.05} == rejected
    assert [value is None for value in found] == [value is None for value in values]


@pytest.mark.parametrize("method", ["holm", "benjamini-hochberg"])
def test_what_has_no_test_does_not_count_as_one(method):
    assert corrected([None, 0.01, None, 0.04], method)[1::2] == corrected([0.01, 0.04], method)
    assert corrected([], method) == []


def test_corrections_refuse_what_is_no_probability():
    with pytest.raises(ValueError, match="between 0 and 1"):
        corrected([0.5, NAN])
    with pytest.raises(ValueError, match="no correction 'bonferroni'"):
        corrected([0.5], "bonferroni")
    with pytest.raises(ValueError, match="not of the same tests"):
        family([0.5, None], [0.25, 0.25])


@pytest.mark.parametrize(
    ("seeds", "tests", "method", "smallest", "reachable", "needed"),
    [
        (3, 1, "holm", 0.25, False, 6),
        (5, 1, "benjamini-hochberg", 0.0625, False, 6),
        (6, 1, "holm", 0.03125, True, 6),
        (6, 2, "holm", 0.0625, False, 7),
        (10, 30, "holm", 60 / 1024, False, 11),
        (10, 30, "benjamini-hochberg", 2 / 1024, True, 6),
        (20, 3000, "holm", 6000 / 100_001, False, None),
    ],
)
def test_where_seeds_cannot_reach_alpha_nothing_is_marked(seeds, tests, method, smallest, reachable, needed):
    best = [smallest_p(seeds)] * tests
    found = family(best, best, method)
    assert found.smallest == pytest.approx(smallest)
    assert found.reachable is reachable
    assert any(found.marked) is reachable
    assert (found.seeds_needed, found.tests) == (needed, tests)


def test_a_family_has_each_test_in_its_place():
    found = family([0.001, None, 0.04, 0.03], [0.001, None, 0.002, 0.001])
    assert found.corrected == (pytest.approx(0.003), None, pytest.approx(0.06), pytest.approx(0.06))
    assert found.marked == (True, False, False, False)
    assert (found.smallest, found.tests) == (pytest.approx(0.003), 3)
    nothing = family([None], [None])
    assert (nothing.corrected, nothing.marked, nothing.smallest) == ((None,), (False,), None)
    assert (nothing.reachable, nothing.seeds_needed, nothing.tests) == (False, None, 0)


@pytest.mark.parametrize(
    ("method", "smallest", "could"),
    [
        ("holm", 0.01, True),  # second of three: twice .01
        ("holm", 0.03, False),  # twice .03
        ("benjamini-hochberg", 0.03, True),  # three halves of .03
        ("benjamini-hochberg", 0.04, False),
    ],
)
def test_whether_a_test_could_be_marked_goes_by_its_own_pairs_beside_the_others(method, smallest, could):
    assert could_be_marked([0.001, 0.2, 0.5, None], [0.001, smallest, 0.5, None], method) == [True, could, False, False]


@given(st.lists(st.tuples(st.integers(2, 12), st.floats(0, 1)), min_size=1, max_size=6))
def test_where_no_family_can_be_marked_no_test_can(drawn):
    smallest = [smallest_p(n) for n, _ in drawn]
    p = [least + (1 - least) * share for least, (_, share) in zip(smallest, drawn, strict=True)]
    found = could_be_marked(p, smallest)
    assert not any(found) or family(p, smallest).reachable
    assert all(could for could, marked in zip(found, family(p, smallest).marked, strict=True) if marked)


@given(st.lists(scores, min_size=5, max_size=12), st.lists(scores, min_size=5, max_size=12))
def test_the_probability_of_improvement_is_mann_and_whitneys(first, second):
    found = probability_of_improvement(first, second)
    expected = stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
    assert found.value == pytest.approx(expected)
    assert found.value + probability_of_improvement(second, first).value == pytest.approx(1)
    assert found.low is None or found.low <= found.value <= found.high
    assert (found.n, found.unit) == (min(len(first), len(second)), "seeds")


def test_the_probability_of_improvement_is_a_mean_over_tasks():
    first, second = normal(2, 6, 3)
    first[5, 0] = second[4, 1] = second[5, 1] = NAN
    found = probability_of_improvement(first, second)
    each = [probability_of_improvement(first[:, i], second[:, i]) for i in range(3) if i != 1]
    assert found.reason == "fewer than 5 seeds"
    assert (found.value, found.n, found.missing, found.unit) == (None, 4, 3, "seeds within tasks")
    kept = probability_of_improvement(first[:, [0, 2]], second[:, [0, 2]])
    assert kept.value == pytest.approx(np.mean([one.value for one in each]))
    assert kept.high - kept.low < max(one.high - one.low for one in each)
    with pytest.raises(ValueError, match="of 3 and of 2 tasks"):
        probability_of_improvement(first, second[:, :2])


def test_where_all_runs_are_better_resampling_shows_nothing():
    found = probability_of_improvement(np.arange(5) + 10, np.arange(5))
    assert (found.value, found.low, found.high, found.reason) == (1, None, None, "no spread between seeds")


def test_seeds_of_the_two_are_resampled_apart():
    found = probability_of_improvement(np.arange(8), np.arange(8))
    assert found.value == 0.5
    assert found.low < 0.3 < 0.7 < found.high  # drawn alike, every resample would tie
    four = probability_of_improvement(*np.repeat(np.arange(8.0)[None, :, None], 2, axis=0).repeat(4, axis=2))
    assert (four.high - four.low) / (found.high - found.low) == pytest.approx(0.5, abs=0.08)  # each task by itself


def test_scores_that_only_rounding_tells_apart_tie():
    assert probability_of_improvement([0.1 + 0.2] * 5, [0.3] * 5).value == 0.5
    assert ranking([[0.1 + 0.2, 0.3, 0.2], [0.5, 0.5, 0.1]]).mean_ranks == (1.5, 1.5, 3)


# Over tasks

DEMSAR = np.array(  # Demšar 2006, table 6: AUC of four decision trees; in voting the third wins by digits not printed
    [
        [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970],
    ]
)  # fmt: skip


def test_four_trees_over_fourteen_tasks():
    found = ranking(DEMSAR)
    assert found.mean_ranks == pytest.approx((3.143, 2.000, 2.893, 1.964), abs=5e-4)
    squares = sum(rank**2 for rank in found.mean_ranks)
    assert 12 * 14 / 20 * (squares - 4 * 25 / 4) == pytest.approx(9.28, abs=5e-3)  # printed without tie correction
    assert found.friedman == pytest.approx(stats.friedmanchisquare(*DEMSAR.T).statistic)
    assert found.critical_difference == pytest.approx(1.25, abs=5e-3)
    assert found.cliques == ((3, 1, 2, 0),)  # the largest difference is 1.18
    lenient = ranking(DEMSAR, alpha=0.1)
    assert lenient.critical_difference == pytest.approx(1.12, abs=5e-3)
    assert lenient.cliques == ((3, 1, 2), (2, 0))
    assert (found.n, found.left_out, found.unit) == (14, 0, "tasks")


@pytest.mark.parametrize(
    ("alpha", "quantiles"),
    [
        (0.05, [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]),
        (0.10, [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]),
    ],
)
def test_critical_differences_have_the_published_quantiles(alpha, quantiles):
    """Demšar 2006, table 5(a), for 2 to 10 models."""
    for models, quantile in enumerate(quantiles, 2):
        found = ranking(normal(3, models), alpha=alpha).critical_difference
        assert found == pytest.approx(quantile * math.sqrt(models * (models + 1) / 18), rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "statistic", "p"),
    [
        ([[1, 2, 3]] * 3, 6, 6 / 216),
        ([[1, 2, 3]] * 4, 8, 6 / 1296),
        ([[1, 2, 3]] * 3 + [[2, 1, 3]], 6.5, 54 / 1296),
        ([[1, 2, 3, 4]] * 3, 9, 24 / 24**3),
    ],
)
def test_friedmans_test_is_exact_where_tasks_are_few(ranks, statistic, p):
    """The published tables: .028, .0046, .042, .0017."""
    found = ranking(ranks, higher_is_better=False)
    assert (found.friedman, found.p) == (pytest.approx(statistic), pytest.approx(p))
    assert found.test == "permutations within tasks, exact"


@settings(deadline=None, max_examples=25)
@given(st.integers(3, 6), st.integers(3, 12), st.integers(0, 999))
def test_friedmans_statistic_is_scipys(models, tasks, seed):
    table = np.random.default_rng(seed).integers(0, 6, (tasks, models)) / 5
    found = ranking(table)
    if found.friedman is not None:
        assert found.friedman == pytest.approx(stats.friedmanchisquare(*table.T).statistic)
        assert 0 < found.p <= 1


def test_with_many_tasks_p_is_that_of_chi_squared():
    table = normal(60, 4) + np.array([0, 0, 0.15, 0.3])
    found, expected = ranking(table), stats.friedmanchisquare(*table.T).pvalue
    assert found.test == "permutations within tasks, 20,000 random"
    assert 0.01 < expected < 0.5
    assert found.p == pytest.approx(expected, abs=4 * math.sqrt(expected / PERMUTATIONS) + 0.005)


def test_cliques_are_the_largest_sets_that_tasks_do_not_tell_apart():
    table = -np.tile(np.arange(6.0), (8, 1))
    found = ranking(table)
    assert found.mean_ranks == (1, 2, 3, 4, 5, 6)
    assert 2 < found.critical_difference < 3
    assert found.cliques == ((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5))
    many = ranking(np.tile(table, (20, 1)))
    assert many.critical_difference < 1
    assert many.cliques == ()


def test_ranks_of_losses_run_the_other_way():
    table = normal(6, 3)
    assert ranking(-table, higher_is_better=False).mean_ranks == ranking(table).mean_ranks


def test_tasks_that_lack_a_model_are_left_out():
    table = normal(6, 3)
    table[0, 1] = table[4, 2] = NAN
    found, expected = ranking(table), ranking(np.delete(table, [0, 4], axis=0))
    assert (found.mean_ranks, found.p, found.n, found.left_out) == (expected.mean_ranks, expected.p, 4, 2)
    nothing = ranking(np.full((3, 2), NAN))
    assert (nothing.mean_ranks, nothing.p, nothing.cliques, nothing.left_out) == (None, None, (), 3)


@pytest.mark.parametrize("table", [np.ones((4, 3)), np.zeros((4, 3)), [[3, 1, 2]]])
def test_without_differences_within_or_between_tasks_there_is_no_test(table):
    found = ranking(table)
    assert (found.friedman, found.p, found.test) == (None, None, None)
    assert [sorted(clique) for clique in found.cliques] == [[0, 1, 2]]


def test_ranks_are_of_two_models_at_least():
    assert ranking([[0.2, 0.1]] * 6).p == 2 / 2**6
    for wrong in ([[0.1], [0.2]], [0.1, 0.2]):
        with pytest.raises(ValueError, match="two models at least"):
            ranking(wrong)
    with pytest.raises(ValueError, match="infinite"):
        ranking([[0.1, math.inf]])


# What the intervals hold

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "statistics.md").read_text()


def published(row):
    """The shares that docs/statistics.md gives, by number of seeds."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row.interval} | {row.data} |")]
    entries = [entry.strip(" ()") for entry in line.strip("| ").split("|")[2:]]
    return {n: float(entry) / 100 for n, entry in zip(coverage.SEEDS, entries, strict=True) if entry != "-"}


@pytest.mark.parametrize("seeds", [3, 5, 10, 30])
def test_t_intervals_of_normal_data_hold_the_mean_in_94_to_96_percent(seeds):
    drawn = normal(20_000, seeds, seed=2)
    low, high = student(drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / math.sqrt(seeds), seeds - 1)
    assert 0.94 <= np.mean((low <= 0) & (high >= 0)) <= 0.96


@pytest.mark.parametrize("row", coverage.rows(), ids=lambda row: f"{row.interval} {row.data}")
def test_the_coverage_that_is_documented_is_what_is_measured(row):
    """Other data, few of them: within four binomial errors of both."""
    documented = published(row)
    assert list(documented) == list(row.defined)
    for seeds in (row.defined[0], 10):
        share, repeats = documented[seeds], row.repeats // 7
        error = math.sqrt(share * (1 - share) * (1 / repeats + 1 / row.repeats))
        assert row.measure(seeds, repeats, 1) == pytest.approx(share, abs=4 * error)


def test_wilsons_documented_coverage_is_exact():
    for line in coverage.wilson_lines():
        assert line in PAGE.splitlines()
    for rate, seeds in ((0.1, 5), (0.5, 10)):
        failures = np.random.default_rng(0).binomial(seeds, rate, 20_000)
        bounds = np.array([[one.low, one.high] for one in (failure_rate(count, seeds) for count in range(seeds + 1))])
        share = np.mean((bounds[failures, 0] <= rate) & (rate <= bounds[failures, 1]))
        assert share == pytest.approx(coverage.wilson_coverage(rate, seeds), abs=4 * math.sqrt(0.25 / 20_000))
