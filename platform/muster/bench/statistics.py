"""The ratio of two programs' times from interleaved pairs of runs, with a bootstrap confidence interval.

A machine becomes slower and faster over seconds, and processes of one program differ by their memory layout. So the two
runs of a pair follow each other, the unit of resampling is the pair, and the estimate is the median of the pairs'
ratios, which a few disturbed runs do not move. docs/reference/performance.md has the measured rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 4000
_SEED = 0  # the same runs give the same decision
MIN_PAIRS = 5
"""With fewer pairs the bootstrap knows nothing about the tails."""


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The time of B divided by that of A, and its interval; each bound is exceeded with the rate that was asked for.

    `paired` is False for runs that were not interleaved; `samples` counts pairs, else the runs of the smaller side.
    """

    ratio: float
    low: float
    high: float
    samples: int
    paired: bool = True

    @property
    def half_width(self) -> float:
        """Half of the interval, as a difference of logarithms: about the relative error."""
        return math.log(self.high / self.low) / 2


class Outcome(StrEnum):
    """The decision about one benchmark."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    UNCHANGED = "unchanged"
    """No change was found: changes well below `half_width` cannot be."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a ratio counts as a change, and when enough runs were made.

    `false_alarm_rate`: probability of a regression for each benchmark although nothing changed (one-sided; that of an
    improvement is the same). `threshold`: changes below this fraction are not reported. Runs end once the interval's
    half-width is at most `precision` after `min_pairs`, or with `max_pairs`.
    """

    false_alarm_rate: float = 0.025
    threshold: float = 0.01
    precision: float = 0.01
    min_pairs: int = 12
    max_pairs: int = 24

    @property
    def batch(self) -> int:
        """The number of pairs that are added at a time after `min_pairs`."""
        return max(self.min_pairs // 2, 1)

    def decide(self, interval: RatioInterval) -> Outcome:
        """The decision for an interval that was computed with `false_alarm_rate`."""
        if interval.low > 1 and interval.ratio > 1 + self.threshold:
            return Outcome.REGRESSION
        if interval.high < 1 and interval.ratio < 1 / (1 + self.threshold):
            return Outcome.IMPROVEMENT
        return Outcome.UNCHANGED

    def missing_pairs(self, interval: RatioInterval | None, pairs: int) -> int:
        """How many more pairs to run, after `pairs` of them gave `interval`."""
        if pairs < self.min_pairs:
            return self.min_pairs - pairs
        if interval is not None and interval.half_width <= self.precision:
            return 0
        return max(min(self.batch, self.max_pairs - pairs), 0)


def paired_ratio(a_s: Sequence[float], b_s: Sequence[float], rate: float) -> RatioInterval:
    """The interval from pairs `(a_s[i], b_s[i])` of runs that followed each other.

    Raises ValueError for fewer than `MIN_PAIRS` pairs, or times that are not above 0.
    """
    if len(a_s) != len(b_s):
        raise ValueError(f"both sides must have the same number of runs; got {len(a_s)} and {len(b_s)}")
    logs = _logarithms(b_s) - _logarithms(a_s)
    rows = np.random.default_rng(_SEED).integers(0, len(logs), (_RESAMPLES, len(logs)))
    medians = np.median(logs[rows], axis=1)
    return _interval(float(np.median(logs)), medians, len(logs), rate, paired=True)


def unpaired_ratio(a_s: Sequence[float], b_s: Sequence[float], rate: float) -> RatioInterval:
    """The interval of the ratio of medians of runs that were not interleaved: each side is resampled by itself.

    What changed between the two recordings besides the program is part of the ratio. Raises ValueError as above.
    """
    a, b = _logarithms(a_s), _logarithms(b_s)
    random = np.random.default_rng(_SEED)
    medians = np.median(b[random.integers(0, len(b), (_RESAMPLES, len(b)))], axis=1) - np.median(
        a[random.integers(0, len(a), (_RESAMPLES, len(a)))], axis=1
    )
    estimate = float(np.median(b) - np.median(a))
    return _interval(estimate, medians, min(len(a), len(b)), rate, paired=False)


def _logarithms(times_s: Sequence[float]) -> NDArray[np.float64]:
    if len(times_s) < MIN_PAIRS:
        raise ValueError(f"at least {MIN_PAIRS} runs of each side are needed; got {len(times_s)}")
    times = np.asarray(times_s, dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be finite and above 0")
    return np.log(times)


def _interval(
    estimate: float, resampled: NDArray[np.float64], samples: int, rate: float, *, paired: bool
) -> RatioInterval:
    tail = expanded_tail(rate, samples)
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return RatioInterval(math.exp(estimate), math.exp(low), math.exp(high), samples, paired)


def expanded_tail(rate: float, samples: int) -> float:
    """The quantile of the bootstrap distribution at which a bound is exceeded with probability `rate`.

    Percentile intervals of few samples are too short, as if the normal distribution were used in place of Student's;
    Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 3.3: expanded percentile interval.
    """
    normal = NormalDist()
    return normal.cdf(student_quantile(rate, samples - 1) * math.sqrt(samples / (samples - 1)))


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution: Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5), with an
    error below 1% from four degrees of freedom and a probability of 0.5%."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / math.pow(freedom, power) for power, term in enumerate(terms))


def pair_order(pairs: int, first: int = 0) -> list[tuple[int, str]]:
    """The order of runs of pairs `first` to `first + pairs - 1`: (pair, side). The order within pairs alternates, ABBA,
    so that being second is as frequent for both sides."""
    return [(pair, side) for pair in range(first, first + pairs) for side in ("AB" if pair % 2 == 0 else "BA")]
