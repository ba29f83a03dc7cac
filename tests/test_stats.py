"""Statistics against known answers, exact distributions and properties."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from runners.harness.measure.metrics import rates
from runners.harness.stats import (
    MIN_VALUES,
    Pair,
    Ratio,
    compare,
    drift,
    median_rate,
    overall,
    percentiles,
    rate_spread,
    spread,
)

SAMPLES = st.lists(st.floats(1.0, 1e4), min_size=1, max_size=12)


def noisy(center: float, *, n: int = 20, share: float = 0.02, seed: int = 0) -> list[float]:
    """Repeats around ``center`` with a deviation of ``share`` of it."""
    return list(np.random.default_rng(seed).normal(center, share * center, n))


def compared(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], drift: float = 1.0
) -> Ratio:
    return compare(Pair(a, b, drift))


def test_b4_the_rate_of_three_repeats_is_the_median_never_the_mean() -> None:
    per_repeat = rates(100, [1.0, 1.0, 2.0])
    assert per_repeat == [100.0, 100.0, 50.0]
    assert rate_spread(per_repeat).median == 100.0


def test_the_rate_of_an_even_number_of_repeats_is_that_of_their_median_time() -> None:
    assert median_rate(rates(150, [1.0, 2.0])) == pytest.approx(150 / 1.5)  # and not 112.5
    assert rate_spread(rates(150, [2.0, 1.0, 9.0, 0.5])).median == pytest.approx(150 / 1.5)


@given(SAMPLES)
@settings(max_examples=40, deadline=None)
def test_the_spread_of_rates_is_that_of_the_times_behind_them(seconds: list[float]) -> None:
    of_rates, of_times = rate_spread(rates(1, seconds)), spread(seconds)
    assert of_rates.median * of_times.median == pytest.approx(1.0)
    assert of_rates.n == of_times.n
    if of_times.low is not None and of_times.high is not None:
        assert of_rates.low is not None
        assert of_rates.high is not None
        assert of_rates.low <= of_rates.median <= of_rates.high
        assert of_rates.low * of_times.high == pytest.approx(1.0)
        assert of_rates.high * of_times.low == pytest.approx(1.0)


@given(SAMPLES.filter(lambda values: len(values) % 2 == 1))
@settings(max_examples=20, deadline=None)
def test_the_rate_of_an_odd_number_of_repeats_is_one_of_them(values: list[float]) -> None:
    assert median_rate(values) == np.median(values)


def test_spread_of_five_values() -> None:
    s = spread([10.0, 12.0, 11.0, 10.5, 11.5])
    assert (s.median, s.n) == (11.0, 5)
    assert s.variation == pytest.approx(0.0718699, rel=1e-5)  # sqrt(0.625) / 11


@given(SAMPLES)
@settings(max_examples=40, deadline=None)
def test_median_and_variation_are_numpys(values: list[float]) -> None:
    s = spread(values)
    assert s.median == np.median(values)
    assert s.n == len(values)
    if len(values) > 1:
        assert s.variation == pytest.approx(float(scipy_stats.variation(values, ddof=1)))


@pytest.mark.parametrize("n", [5, 11, 25])
def test_interval_is_the_bootstraps_own_distribution(n: int) -> None:
    # A resample's median is at most the k-th value when more than half of its n draws are.
    values = [100.0 + k for k in range(n)]
    at_most = scipy_stats.binom.sf(n // 2, n, np.arange(1, n + 1) / n)
    low, high = (values[int(np.searchsorted(at_most, q))] for q in (0.025, 0.975))
    s = spread(values)
    assert (s.low, s.high) == (low, high)


@given(st.lists(st.floats(1.0, 1e4), min_size=MIN_VALUES, max_size=12))
@settings(max_examples=40, deadline=None)
def test_interval_holds_the_median(values: list[float]) -> None:
    s = spread(values)
    assert s.low is not None
    assert s.high is not None
    assert min(values) <= s.low <= s.median <= s.high <= max(values)


@pytest.mark.parametrize("n", [1, 4])
def test_too_few_values_have_no_interval_and_are_not_stable(n: int) -> None:
    s = spread([7.0] * n)
    assert (s.median, s.low, s.high, s.half_width) == (7.0, None, None, None)
    assert not s.stable


def test_one_value_has_no_variation() -> None:
    assert spread([7.0]).variation is None


def test_equal_values_have_an_interval_of_no_width() -> None:
    s = spread([7.0] * MIN_VALUES)
    assert (s.low, s.high, s.half_width, s.variation) == (7.0, 7.0, 0.0, 0.0)
    assert s.stable


@pytest.mark.parametrize(
    ("values", "stable"),
    [
        (noisy(100, share=0.02), True),
        ([100.0] * 20 + [200.0], False),  # an interval of no width, a variation of a fifth
        ([94.0] * 10 + [106.0] * 10, False),  # a variation of 6 %, an interval of 12 %
    ],
    ids=["quiet", "outlier", "two levels"],
)
def test_stable_needs_little_variation_and_a_narrow_interval(
    values: list[float], stable: bool
) -> None:
    assert spread(values).stable is stable


@pytest.mark.parametrize(
    ("n", "supported"),
    [(1, [50]), (63, [50]), (64, [50, 90]), (661, [50, 90]), (662, [50, 90, 99])],
)
def test_percentiles_that_the_sample_does_not_support_are_left_out(
    n: int, supported: list[int]
) -> None:
    values = noisy(1.0, n=n)
    found = percentiles(values)
    assert list(found) == supported
    assert found == {q: np.percentile(values, q) for q in supported}


def test_a_planted_difference_of_15_percent_is_found() -> None:
    up = compared([noisy(115, seed=1)], [noisy(100, seed=2)])
    assert up.verdict == "faster"
    assert up.ratio == pytest.approx(1.15, rel=0.02)
    assert up.low is not None
    assert 1.05 < up.low < up.ratio
    assert compared([noisy(100, seed=2)], [noisy(115, seed=1)]).verdict == "slower"


def test_no_difference_is_called_on_equal_samples() -> None:
    verdicts = [
        compared([noisy(100, share=0.04, seed=2 * s)], [noisy(100, share=0.04, seed=2 * s + 1)])
        for s in range(30)
    ]
    assert {v.verdict for v in verdicts} <= {"same", "unclear"}
    assert compared([noisy(100, seed=1)], [noisy(100, seed=1)]).verdict == "same"


@pytest.mark.parametrize(("n_a", "n_b"), [(4, 4), (4, 50), (50, 4), (1, 1)])
def test_fewer_than_five_values_a_side_are_unclear(n_a: int, n_b: int) -> None:
    r = compared([[200.0] * n_a], [[100.0] * n_b])
    assert (r.ratio, r.low, r.high, r.verdict, r.n) == (2.0, None, None, "unclear", (n_a, n_b))


FEW = [
    ([210.0, 220.0, 230.0], [100.0, 101.0, 102.0], "faster"),
    ([100.0, 101.0, 102.0, 99.0], [210.0, 220.0, 230.0], "slower"),
    ([210.0, 220.0, 230.0], [100.0] * 50, "faster"),
    ([200.0, 200.0, 200.0], [100.0, 100.0, 100.0], "unclear"),  # not beyond 2
    ([101.0, 220.0, 230.0], [100.0, 101.0, 102.0], "unclear"),  # the ranges meet
    ([500.0, 500.0], [100.0, 100.0, 100.0], "unclear"),  # two values are none
]


@pytest.mark.parametrize(("a", "b", "verdict"), FEW)
def test_of_few_values_only_what_nobody_would_doubt_is_different(
    a: list[float], b: list[float], verdict: str
) -> None:
    quiet = compare(Pair([a], [b], quiet=True))
    assert (quiet.verdict, quiet.low, quiet.high) == (verdict, None, None)
    assert compare(Pair([a], [b])).verdict == "unclear"  # whether it was quiet is not known
    split = compare(Pair([a[:1], a[1:]], [b], quiet=True))
    assert split.verdict == verdict


def test_five_values_may_be_spread_over_rounds() -> None:
    r = compared([[200.0], [200.0] * 4], [[100.0] * 3, [100.0] * 2])
    assert (r.ratio, r.verdict, r.n) == (2.0, "faster", (5, 5))


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (105.1, 100.0, "faster"),
        (104.9, 100.0, "same"),
        (100.0, 104.9, "same"),
        (100.0, 105.1, "slower"),
    ],
)
def test_verdict_at_the_margin_of_5_percent(a: float, b: float, verdict: str) -> None:
    r = compared([[a] * 5], [[b] * 5])
    assert r.verdict == verdict
    assert r.low == pytest.approx(a / b)
    assert r.high == pytest.approx(a / b)


@pytest.mark.parametrize("ratio", [1.0, 1.05, 1 / 1.05])
def test_an_interval_across_the_margin_is_unclear(ratio: float) -> None:
    spread_out = [80.0, 90.0, 100.0, 110.0, 120.0]
    assert compared([[v * ratio for v in spread_out]], [spread_out]).verdict == "unclear"


@pytest.mark.parametrize("drift", [1.1, 1 / 1.1])
def test_drift_widens_the_interval_of_a_single_round(drift: float) -> None:
    a, b = [[110.0] * 5], [[100.0] * 5]
    assert compared(a, b).verdict == "faster"
    drifted = compared(a, b, drift=drift)
    assert drifted.ratio == 1.1
    assert drifted.low == pytest.approx(1.0)
    assert drifted.high == pytest.approx(1.21)
    assert drifted.verdict == "unclear"
    assert compared(a * 2, b, drift=drift).verdict == "unclear"  # one side is enough
    assert compared(a * 2, b * 2, drift=drift) == compared(a * 2, b * 2)


def test_rounds_are_resampled_before_repeats() -> None:
    # Rounds that disagree: drawn two at a time their rates are 100, 109 or 120, and nothing
    # that the five equal repeats within each say can narrow that.
    r = compared([[100.0] * 5, [120.0] * 5], [[100.0] * 5] * 2)
    assert r.ratio == pytest.approx(2 / (1 + 1 / 1.2))
    assert r.low == pytest.approx(1.0)
    assert r.high == pytest.approx(1.2)
    assert r.verdict == "unclear"
    assert r.n == (10, 10)


def test_what_slowed_a_round_slowed_both_sides_of_it() -> None:
    weather = [100.0, 60.0, 110.0, 80.0, 95.0, 70.0]
    a, b = [[0.87 * v] for v in weather], [[v] for v in weather]
    assert compare(Pair(a, b)).verdict == "unclear"
    r = compare(Pair(a, b, shared=True))
    assert (r.verdict, r.ratio) == ("slower", pytest.approx(0.87))
    assert (r.low, r.high) == (pytest.approx(0.87), pytest.approx(0.87))
    assert overall([Pair(a, b, shared=True)] * 2).high == pytest.approx(0.87)


def test_rounds_that_are_shared_but_not_alike_are_as_unsure_as_others() -> None:
    a, b = ([[v] for v in noisy(100, n=30, share=0.1, seed=s)] for s in (1, 2))
    widths = []
    for shared in (True, False):
        r = compare(Pair(a, b, shared=shared))
        assert r.low is not None
        assert r.high is not None
        widths.append(math.log(r.high / r.low))
    assert widths[0] == pytest.approx(widths[1], rel=0.25)


def test_sides_of_so_many_rounds_share_none() -> None:
    with pytest.raises(ValueError, match="sides of 2 and 1 rounds share no rounds"):
        Pair([[1.0], [1.0]], [[1.0]], shared=True)


@pytest.mark.parametrize("shared", [False, True])
def test_the_interval_of_rounds_holds_the_true_ratio_99_times_in_100(shared: bool) -> None:
    rng, missed = np.random.default_rng(11), 0
    for _ in range(100):
        weather = rng.lognormal(0.0, 0.2, 10)
        a, b = ([[v] for v in at * weather * rng.lognormal(0.0, 0.05, 10)] for at in (87.0, 100.0))
        r = compare(Pair(a, b, shared=shared))
        assert r.low is not None
        assert r.high is not None
        missed += not r.low <= 0.87 <= r.high
    assert missed <= 4


def test_rounds_may_differ_in_length() -> None:
    r = compared([[110.0] * 7, [110.0] * 2, [110.0]], [[100.0] * 5])
    assert (r.low, r.high) == (pytest.approx(1.1), pytest.approx(1.1))


def test_the_interval_of_a_ratio_is_at_99_percent() -> None:
    n, values = 25, [100.0 + k for k in range(25)]
    at_most = scipy_stats.binom.sf(n // 2, n, np.arange(1, n + 1) / n)  # as above
    low, high = (values[int(np.searchsorted(at_most, q))] for q in (0.005, 0.995))
    r = compared([values], [[100.0] * 5])
    assert (r.low, r.high) == (pytest.approx(low / 100), pytest.approx(high / 100))


def test_comparing_twice_gives_the_same_interval() -> None:
    a, b = [noisy(115, share=0.1)], [noisy(100, share=0.1, seed=1)]
    assert compared(a, b) == compared(a, b)


@given(SAMPLES, SAMPLES)
@settings(max_examples=25, deadline=None)
def test_swapping_the_sides_gives_the_inverse(a: list[float], b: list[float]) -> None:
    there, back = compared([a], [b]), compared([b], [a])
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.n == back.n[::-1]
    assert {there.verdict, back.verdict} != {"faster"}
    assert {there.verdict, back.verdict} != {"slower"}


@given(SAMPLES, st.floats(0.1, 10.0))
@settings(max_examples=25, deadline=None)
def test_a_ratio_does_not_depend_on_the_unit(a: list[float], unit: float) -> None:
    b = noisy(100, n=6)
    one, other = compared([a], [b]), compared([[v * unit for v in a]], [[v * unit for v in b]])
    assert other.ratio == pytest.approx(one.ratio)
    if one.low is not None and other.low is not None:
        assert math.isclose(other.low, one.low, rel_tol=1e-6)


# over several pairs


def test_the_overall_ratio_is_the_geometric_mean_of_the_ratios() -> None:
    pairs = [Pair([[a] * 5], [[100.0] * 6]) for a in (50.0, 200.0, 800.0)]
    r = overall(pairs)
    assert r.ratio == pytest.approx(2.0)  # (1/2 * 2 * 8) ** (1/3); the mean would be 3.5
    assert (r.low, r.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (r.verdict, r.n) == ("faster", (15, 18))


def test_one_pair_is_judged_as_it_is_alone() -> None:
    a, b = [noisy(115, share=0.1)], [noisy(100, share=0.1, seed=1)]
    assert overall([Pair(a, b, 1.02)]) == compared(a, b, drift=1.02)


@pytest.mark.parametrize(("few", "many"), [(4, 50), (4, 4), (50, 4)])
def test_one_pair_that_is_too_small_leaves_the_whole_unclear(few: int, many: int) -> None:
    enough = Pair([[200.0] * 9], [[100.0] * 9])
    r = overall([enough, Pair([[200.0] * few], [[100.0] * many])])
    assert (r.ratio, r.low, r.high, r.verdict) == (pytest.approx(2.0), None, None, "unclear")


@pytest.mark.parametrize("change", [1.21, 1 / 1.21])
def test_drift_widens_the_whole_by_its_mean_over_the_pairs(change: float) -> None:
    a, b = [[110.0] * 5], [[100.0] * 5]
    r = overall([Pair(a, b, change), Pair(a, b)])
    assert (r.low, r.high) == (pytest.approx(1.0), pytest.approx(1.21))
    assert r.verdict == "unclear"
    rounds = overall([Pair(a * 2, b * 2, change), Pair(a * 2, b * 2)])
    assert (rounds.low, rounds.verdict) == (pytest.approx(1.1), "faster")


def test_what_is_known_of_many_pairs_is_known_better() -> None:
    def width(k: int) -> float:
        pairs = [Pair([noisy(100, seed=n)], [noisy(100, seed=100 + n)]) for n in range(k)]
        r = overall(pairs)
        assert r.low is not None
        assert r.high is not None
        return math.log(r.high / r.low)

    assert width(9) == pytest.approx(width(1) / 3, rel=0.4)


def test_a_round_that_was_slow_for_all_does_not_average_out() -> None:
    # Two rounds that disagree, alike in every cell: as unsure as one cell, however many there are.
    pair = Pair([[100.0] * 5, [120.0] * 5], [[100.0] * 5] * 2)
    one, nine = overall([pair]), overall([pair] * 9)
    assert (nine.low, nine.high) == (pytest.approx(one.low), pytest.approx(one.high))
    assert (nine.low, nine.high) == (pytest.approx(1.0), pytest.approx(1.2))


@pytest.mark.parametrize(("n", "share"), [(5, 0.05), (6, 0.3), (9, 0.1)])
def test_the_overall_interval_holds_the_true_ratio_99_times_in_100(n: int, share: float) -> None:
    rng = np.random.default_rng(7)
    truth = rng.normal(0.0, 0.3, 4)  # logarithms of the four cells' ratios

    def side(shifts: Sequence[float]) -> list[list[list[float]]]:
        return [[list(rng.lognormal(4.0 + shift, share, n))] for shift in shifts]

    missed = 0
    for _ in range(100):
        pairs = [Pair(a, b) for a, b in zip(side(truth), side([0.0] * 4), strict=True)]
        r = overall(pairs)
        assert r.low is not None
        assert r.high is not None
        missed += not r.low <= math.exp(truth.mean()) <= r.high
    assert missed <= 4  # more in 1 of 290 simulations, were it 99 % and not better


def test_comparing_the_same_pairs_twice_gives_the_same() -> None:
    pairs = [Pair([noisy(100, seed=n)], [noisy(100, seed=9 + n)]) for n in range(3)]
    assert overall(pairs) == overall(pairs)


@pytest.mark.parametrize(
    ("after", "before", "change"),
    [
        ([55.0], [50.0], 1.1),
        ([40.0, 50.0, 90.0], [100.0], 0.5),
        ([], [50.0], 1.0),
        ([50.0], [], 1.0),
    ],
)
def test_drift_is_the_ratio_of_the_median_reference_times(
    after: list[float], before: list[float], change: float
) -> None:
    assert drift(after, before) == pytest.approx(change)
