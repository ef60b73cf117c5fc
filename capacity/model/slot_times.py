"""Describe the times of single rollouts as multiples of their mean, and sample from them.

The shape is that of the run's lengths where they are known. Otherwise it is log-normal, fitted to a worker's measured
speed and p90: of the families with two parameters it is closest to real completion lengths. Samples come from a hash,
so that a prediction is the same each time it is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_POINTS = 400  # at which the mean of the longest of several is taken
_SIGMA_MAX = 2.5
LONGEST = 24.0  # no time is longer, in medians: completions end at max_new_tokens
_BISECTIONS = 40
_MASK = (1 << 64) - 1


class Draws:
    """Pseudo-random numbers between 0 and 1 from splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed * 0x9E3779B97F4A7C15 & _MASK

    def uniform(self) -> float:
        """Sample a uniform number, above 0 and below 1."""
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((state ^ (state >> 31)) >> 11) * 2.0**-53 + 2.0**-54

    def of(self, shape: Sequence[float]) -> float:
        """Sample one of these values, each equally likely."""
        return shape[int(self.uniform() * len(shape))]


def fit_log_normal(mean_s: float, p90_s: float, longest_of: int = 1) -> tuple[float, float]:
    """Return median and sigma of the logarithm of single times, such that the longest of so many has this mean and p90.

    Returns:
        (median in seconds, sigma >= 0). Where the p90 is no more than the mean, or too far above it for a log-normal
        distribution, the mean is kept and sigma is the nearest that there is.

    Raises:
        ValueError: mean_s is not positive, or longest_of is below 1.
    """
    if mean_s <= 0 or longest_of < 1:
        raise ValueError("mean_s must be positive and longest_of at least 1")
    sigma = _sigma_of(round(p90_s / mean_s, 6), longest_of)
    return mean_s / mean_of_longest(sigma, longest_of), sigma


@lru_cache(maxsize=1024)
def _sigma_of(ratio: float, count: int) -> float:
    """Return the sigma of the logarithm at which p90 / mean of the longest of so many is this ratio."""
    top = _most_spread(count)  # the ratio falls again above
    low, high = 0.0, top
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _p90_over_mean(middle, count) < ratio else (low, middle)
    return high


@lru_cache(maxsize=1024)
def mean_of_longest(sigma: float, count: int) -> float:
    """Return the mean of the longest of so many log-normal times, in medians of one."""
    if count == 1 and sigma > 0.0:
        cut = math.log(LONGEST) / sigma
        return math.exp(sigma * sigma / 2.0) * _NORMAL.cdf(cut - sigma) + LONGEST * _NORMAL.cdf(-cut)
    return sum(min(LONGEST, math.exp(sigma * z)) for z in _longest_points(count)) / _POINTS


@lru_cache(maxsize=1024)
def log_normal_shape(sigma: float) -> tuple[float, ...]:
    """Return the times of a log-normal distribution in multiples of their mean, at the middles of equal shares."""
    return shape_of([min(LONGEST, math.exp(sigma * z)) for z in _longest_points(1)])


def shape_of(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return these quantiles in multiples of their mean."""
    mean = sum(quantiles) / len(quantiles)
    return tuple(one / mean for one in quantiles)


def longest_quantile(shape: Sequence[float], count: int, share: float) -> float:
    """Return the time that the longest of so many does not exceed with probability ``share``, in means of one."""
    return shape[min(len(shape) - 1, int(share ** (1.0 / count) * len(shape)))]


def mean_longest(shape: Sequence[float], count: int) -> float:
    """Return the mean of the longest of so many, in means of one."""
    size = len(shape)
    return sum(one * (((at + 1) / size) ** count - (at / size) ** count) for at, one in enumerate(shape))


def residual_shape(shape: Sequence[float]) -> tuple[float, ...]:
    """Return the time that is left of a rollout at a random moment, in means of a whole one; quantiles as ``shape``.

    At a random moment a slot holds a rollout with a probability in proportion to its length, and any point of it is
    equally likely (the inspection paradox).
    """
    size, points = len(shape), 32
    weighted = sorted((one * (point + 0.5) / points, one) for one in shape for point in range(points))
    total, reached = sum(weight for _, weight in weighted), 0.0
    found: list[float] = []
    for left, weight in weighted:
        reached += weight
        while len(found) < size and reached >= (len(found) + 0.5) / size * total:
            found.append(left)
    return tuple(found)


def mean_rest(sigma: float, count: int) -> float:
    """Return the mean rest of the longest of so many at a random moment, in medians: E[X^2] / 2 E[X] (renewals)."""
    squares = sum(min(LONGEST, math.exp(sigma * z)) ** 2 for z in _longest_points(count)) / _POINTS
    return squares / (2.0 * mean_of_longest(sigma, count))


@lru_cache(maxsize=64)
def _longest_points(count: int) -> tuple[float, ...]:
    """Return quantiles of the largest of so many standard normal numbers, at the middles of equal shares."""
    shares = ((point + 0.5) / _POINTS for point in range(_POINTS))
    return tuple(_NORMAL.inv_cdf(share ** (1.0 / count)) for share in shares)


def _p90_over_mean(sigma: float, count: int) -> float:
    return min(LONGEST, math.exp(sigma * _NORMAL.inv_cdf(0.9 ** (1.0 / count)))) / mean_of_longest(sigma, count)


@lru_cache(maxsize=64)
def _most_spread(count: int) -> float:
    """Return the sigma at which p90 / mean of the longest of so many is largest."""
    sigmas = [_SIGMA_MAX * part / 50.0 for part in range(51)]
    return max(sigmas, key=lambda sigma: _p90_over_mean(sigma, count))
