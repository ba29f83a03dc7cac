"""Statistics of repeats: medians with intervals, and ratios with verdicts.

Rates are never averaged. The rate that is reported is the work over the median time: for two
repeats of 100 tokens that take 1 s and 2 s it is 100 / 1.5 s, so it fits the time that is shown
beside it.

Comparing follows pyperf and Kalibera & Jones (2013): resample at every level that varies, rounds
first and repeats within them, and call two cells different only if the whole interval of their
ratio is outside a margin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

MIN_VALUES = 5
"""The fewest values of a cell for which an interval is given."""
FEW_VALUES = 3
"""The fewest values of a cell for which there is a verdict, however far apart two cells are."""
CLEAR_RATIO = 2.0
"""A ratio above this may be called different even with fewer than MIN_VALUES values."""
MARGIN = 1.05
"""Differences with a ratio within [1 / MARGIN, MARGIN] do not matter in practice."""
MAX_VARIATION = 0.10
"""Largest coefficient of variation, and largest width of the interval over the median, of a stable
cell.
"""
_RESAMPLES = 4000
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_PERCENTILE_NEEDS = {50: 1, 90: 64, 99: 662}  # after MLPerf's early stopping


@dataclass(frozen=True)
class Spread:
    """The summary of a set of repeats. ``low`` and ``high`` are the 95 % interval of the median."""

    median: float
    low: float | None
    high: float | None
    variation: float | None
    """Standard deviation over mean; None for a single value."""
    n: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval as a share of the median; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.median

    @property
    def stable(self) -> bool:
        """Whether the repeats agree; False if there are too few to tell."""
        if self.half_width is None or self.variation is None:
            return False
        return self.variation < MAX_VARIATION and 2 * self.half_width <= MAX_VARIATION


@dataclass(frozen=True)
class Ratio:
    """The median rate of a over that of b, with its 99 % interval and a verdict."""

    ratio: float
    low: float | None
    high: float | None
    verdict: str
    """``faster``, ``slower`` (a against b), ``same`` or ``unclear``."""
    n: tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """Two cells to compare: their rounds, and for each round the rates of its repeats."""

    a: Sequence[Sequence[float]]
    b: Sequence[Sequence[float]]
    drift: float = 1.0
    """The change of the machine itself between the two cells: a ratio of reference times."""
    shared: bool = False
    """Whether the cells took turns: the nth round of one ran next to the nth round of the other."""
    quiet: bool = False
    """Whether the machine is known to have been quiet while each of the cells was measured."""

    def __post_init__(self) -> None:
        if self.shared and len(self.a) != len(self.b):
            raise ValueError(f"sides of {len(self.a)} and {len(self.b)} rounds share no rounds")

    @property
    def enough(self) -> bool:
        """Whether both cells have enough values for an interval."""
        return min(self.n) >= MIN_VALUES

    @property
    def n(self) -> tuple[int, int]:
        """Values of each side."""
        return len(pooled(self.a)), len(pooled(self.b))

    @property
    def widening(self) -> float:
        """The width that the drift adds to each side of the interval, as a logarithm.

        0 if both cells have several rounds, since these show the drift themselves.
        """
        return abs(math.log(self.drift)) if min(len(self.a), len(self.b)) == 1 else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median, bootstrap 95 % interval and coefficient of variation of a non-empty sample."""
    array = np.asarray(values, dtype=float)
    median = float(np.median(array))
    if len(array) < 2:
        return Spread(median, None, None, None, len(array))
    variation = float(array.std(ddof=1) / array.mean())
    if len(array) < MIN_VALUES:
        return Spread(median, None, None, variation, len(array))
    if array.min() == array.max():
        return Spread(median, median, median, variation, len(array))
    interval = scipy_stats.bootstrap(
        (array,),
        np.median,
        n_resamples=_RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = np.clip(interval, [array.min(), median], [median, array.max()])  # against rounding
    return Spread(median, float(low), float(high), variation, len(array))


def pooled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The values of all rounds."""
    return [value for values in rounds for value in values]


def median_rate(rates: Sequence[float]) -> float:
    """The rate that belongs to the median time.

    For an even number of rates it is the harmonic mean of the middle two, for an odd number the
    median.
    """
    ordered = np.sort(np.asarray(rates, dtype=float))
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low + (high - low) * low / (low + high))


def rate_spread(rates: Sequence[float]) -> Spread:
    """``spread`` of rates: the interval is that of ``median_rate``."""
    array = np.asarray(rates, dtype=float)
    times, median = spread([1 / rate for rate in rates]), median_rate(rates)
    variation = float(array.std(ddof=1) / array.mean()) if len(array) > 1 else None
    if times.low is None or times.high is None:
        return Spread(median, None, None, variation, len(array))
    ends = [1 / times.high, 1 / times.low]
    low, high = np.clip(ends, [array.min(), median], [median, array.max()])  # against rounding
    return Spread(median, float(low), float(high), variation, len(array))


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """The 50th, 90th and 99th percentile, each only if there are enough values for it."""
    return {
        percent: float(np.percentile(values, percent))
        for percent, needed in _PERCENTILE_NEEDS.items()
        if len(values) >= needed
    }


def compare(pair: Pair) -> Ratio:
    """The ratio of the median rates of a pair of cells, with its interval and verdict.

    Shared rounds are drawn for both cells at once, since what slowed down a round slowed down both
    cells and left their ratio as it was. If a cell has a single round, the machine's drift widens
    the interval, since nothing else would show it. With too few values for an interval, only a
    clear difference on a quiet machine gets a verdict.
    """
    ratio = _ratio_of_medians(pair)
    if not pair.enough:
        return Ratio(ratio, None, None, _verdict_of_few(pair, ratio), pair.n)
    rng = np.random.default_rng(0)
    return _judged(ratio, _resampled_ratios(pair, rng, rng, rng), pair.widening, pair.n)


def overall(pairs: Sequence[Pair]) -> Ratio:
    """The geometric mean of the ratios of at least one pair; ``n`` counts all values.

    Every resample draws each pair anew and averages the logarithms. Rounds belong to the whole
    sweep, so pairs with the same number of rounds draw the same ones: what slowed down a round
    slowed down all pairs, and does not average out. Drift does not average out either, so its mean
    widens the interval. If one pair has too few values for an interval, the verdict is unclear.
    """
    if len(pairs) == 1:
        return compare(pairs[0])
    ratio = math.exp(float(np.mean([math.log(_ratio_of_medians(pair)) for pair in pairs])))
    n = sum(pair.n[0] for pair in pairs), sum(pair.n[1] for pair in pairs)
    if not all(pair.enough for pair in pairs):
        return Ratio(ratio, None, None, "unclear", n)
    rng, logs = np.random.default_rng(0), np.zeros(_RESAMPLES)
    for pair in pairs:
        of_a, of_b = np.random.default_rng(1), np.random.default_rng(2)
        logs += _resampled_ratios(pair, rng, of_a, of_b)
    widening = float(np.mean([pair.widening for pair in pairs]))
    return _judged(ratio, logs / len(pairs), widening, n)


def drift(after_ms: Sequence[float], before_ms: Sequence[float]) -> float:
    """The change of the machine itself between two cells.

    It is the ratio of the median reference times (ms) of their rounds; 1 if a cell has none.
    """
    if not len(after_ms) or not len(before_ms):
        return 1.0
    return float(np.median(after_ms) / np.median(before_ms))


def _ratio_of_medians(pair: Pair) -> float:
    return median_rate(pooled(pair.a)) / median_rate(pooled(pair.b))


def _verdict_of_few(pair: Pair, ratio: float) -> str:
    """``unclear``, unless the machine was quiet, the ratio is clear and no ranges overlap."""
    a, b = pooled(pair.a), pooled(pair.b)
    if not pair.quiet or min(len(a), len(b)) < FEW_VALUES:
        return "unclear"
    if ratio > CLEAR_RATIO and min(a) > max(b):
        return "faster"
    if ratio < 1 / CLEAR_RATIO and max(a) < min(b):
        return "slower"
    return "unclear"


def _judged(ratio: float, logs: Floats, widening: float, n: tuple[int, int]) -> Ratio:
    """The 99 % interval and verdict of a ratio, from resamples of its logarithm."""
    low, high = (float(x) for x in np.percentile(logs, [0.5, 99.5]))
    low, high = low - widening, high + widening
    margin = math.log(MARGIN)
    if low > margin:
        verdict = "faster"
    elif high < -margin:
        verdict = "slower"
    elif -margin <= low and high <= margin:
        verdict = "same"
    else:
        verdict = "unclear"
    return Ratio(ratio, math.exp(low), math.exp(high), verdict, n)


def _resampled_ratios(
    pair: Pair, rng: np.random.Generator, of_a: np.random.Generator, of_b: np.random.Generator
) -> Floats:
    """Logarithms of the ratio of medians in ``_RESAMPLES`` draws.

    ``of_a`` and ``of_b`` draw the rounds, ``rng`` draws the repeats within each round.
    """
    rounds_a = of_a.integers(len(pair.a), size=(_RESAMPLES, len(pair.a)))
    medians_a = _resampled_medians(pair.a, rounds_a, rng)
    rounds_b = of_b.integers(len(pair.b), size=(_RESAMPLES, len(pair.b)))
    medians_b = _resampled_medians(pair.b, rounds_a if pair.shared else rounds_b, rng)
    logs: Floats = np.log(medians_a) - np.log(medians_b)
    return logs


def _resampled_medians(
    rounds: Sequence[Sequence[float]],
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    rng: np.random.Generator,
) -> Floats:
    """The median rate of each draw. Each row of ``drawn`` has the rounds of one draw, and the
    repeats within them are drawn here.
    """
    counts = np.array([len(r) for r in rounds])
    padded = np.full((len(rounds), counts.max()), np.nan)
    for row, rates in zip(padded, rounds, strict=True):
        row[: len(rates)] = 1 / np.asarray(rates, dtype=float)
    within = rng.random((*drawn.shape, counts.max())) * counts[drawn][:, :, None]
    sample = padded[drawn[:, :, None], within.astype(int)]
    sample[np.arange(counts.max())[None, None, :] >= counts[drawn][:, :, None]] = np.nan
    medians: Floats = 1 / np.nanmedian(sample.reshape(len(drawn), -1), axis=1)
    return medians
