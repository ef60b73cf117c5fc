"""Describe lengths of rollouts in tokens, and estimate how long one rollout or the longest of many takes.

Shipped sources: production DeepSeek-R1 (ServeGen, arXiv 2505.09999) and Azure's chat and code services (Splitwise,
ISCA 2024), see capacity/catalogue; or the lengths of a run's own rollouts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-12  # error of sums of probabilities


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Seconds that one rollout takes: mean, quantiles, and the expected longest of one batch."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """A histogram of lengths in tokens, uniform within each bin.

    Args:
        lows: shape [bins], float64, ascending: the first length of each bin.
        highs: shape [bins]: one past the last length of each bin.
        probabilities: shape [bins], sum 1.
    """

    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @classmethod
    def from_bins(cls, bins: Iterable[tuple[float, float, float]]) -> LengthDistribution:
        """Build a distribution from bins ``(first length, one past the last, weight)``; weights need not sum to 1.

        Raises:
            ValueError: no bin, a bin that is empty or overlaps, a negative weight, or all of them 0.
        """
        rows = sorted(bins)
        if not rows:
            raise ValueError("a length distribution needs at least one bin")
        lows, highs, weights = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        if not (highs > lows).all() or not (lows >= 0).all() or (lows[1:] < highs[:-1]).any():
            raise ValueError("bins must be [low, high) with 0 <= low < high, and must not overlap")
        if not (weights >= 0).all() or not weights.sum() > 0:
            raise ValueError("weights must not be negative, and not all be 0")
        return cls(lows, highs, weights / weights.sum())

    @classmethod
    def from_lengths(cls, lengths: Iterable[int]) -> LengthDistribution:
        """Build a distribution from observed lengths, one bin for each length.

        Raises:
            ValueError: no length, or a negative one.
        """
        values, counts = np.unique(np.fromiter(lengths, np.int64), return_counts=True)
        return cls.from_bins(zip(values.tolist(), (values + 1).tolist(), counts.tolist(), strict=True))

    @functools.cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        """Share of lengths below the end of each bin, shape [bins]."""
        cumulative = np.cumsum(self.probabilities)
        cumulative[-1] = 1.0
        return cumulative

    @functools.cached_property
    def mean(self) -> float:
        """The mean length in tokens. Lengths are whole, so the middle of [4, 5) is 4."""
        return float(self.probabilities @ ((self.lows + self.highs - 1) / 2))

    @functools.cached_property
    def mean_square(self) -> float:
        """The mean of the squared length, tokens squared; the whole lengths within a bin are equally likely."""
        middle, width = (self.lows + self.highs - 1) / 2, self.highs - self.lows
        return float(self.probabilities @ (middle**2 + (width**2 - 1) / 12))

    @property
    def mean_made_so_far(self) -> float:
        """The mean number of tokens that a rollout in flight has generated so far: ``E[L^2] / 2 E[L]``.

        At a random moment a slot is the likelier to hold a rollout the longer that is, and is half way through it on
        average (the inspection paradox): with a long tail this is far above half the mean length.
        """
        return self.mean_square / (2 * self.mean) if self.mean else 0.0

    def quantile(self, probability: float) -> float:
        """Return the length in tokens that this share of rollouts does not exceed.

        Raises:
            ValueError: not within 0 to 1.
        """
        if not 0.0 <= probability <= 1.0:
            raise ValueError("a quantile's probability must be within 0 to 1")
        bin_index = int(np.searchsorted(self._cumulative, probability - _ROUNDING, side="left"))
        before = float(self._cumulative[bin_index - 1]) if bin_index else 0.0
        inside = (probability - before) / float(self.probabilities[bin_index]) if probability > before else 0.0
        low, high = float(self.lows[bin_index]), float(self.highs[bin_index])
        return low + (high - 1 - low) * min(1.0, inside)

    def quantiles(self, count: int) -> tuple[float, ...]:
        """Return the lengths in tokens at the middles of so many equal shares, ascending."""
        return tuple(self.quantile((place + 0.5) / count) for place in range(count))

    def expected_longest(self, rollouts: int) -> float:
        """Return the expected length in tokens of the longest of so many independent rollouts.

        ``E[max] = sum over bins of the middle of the bin (F_b^n - F_(b-1)^n)``: what a batch waits for where it must be
        complete.

        Raises:
            ValueError: less than one rollout.
        """
        if rollouts < 1:
            raise ValueError("the longest of less than one rollout does not exist")
        powers = np.concatenate(([0.0], self._cumulative)) ** rollouts
        return float(np.diff(powers) @ ((self.lows + self.highs - 1) / 2))

    def capped(self, tokens_max: int) -> LengthDistribution:
        """Return the distribution with rollouts cut at so many tokens, as engines do; their share is in the last bin.

        Raises:
            ValueError: no rollout would be left a token.
        """
        if tokens_max < 1:
            raise ValueError("rollouts must be allowed at least one token")
        kept = self.lows < tokens_max
        lows, weights = self.lows[kept], self.probabilities[kept].copy()
        highs = np.minimum(self.highs[kept], tokens_max)
        if highs.size:
            weights[-1] *= (highs[-1] - lows[-1]) / (self.highs[kept][-1] - lows[-1])
        cut = 1.0 - weights.sum()
        bins = list(zip(lows.tolist(), highs.tolist(), weights.tolist(), strict=True))
        return self.from_bins([*bins, (tokens_max, tokens_max + 1, cut)] if cut > 1e-12 else bins)

    def sample(self, generator: np.random.Generator, rollouts: int) -> NDArray[np.int64]:
        """Sample lengths with the given generator; shape [rollouts]."""
        bins = np.searchsorted(self._cumulative, generator.random(rollouts), side="right")
        return generator.integers(self.lows[bins].astype(np.int64), self.highs[bins].astype(np.int64))


def generation_times(
    lengths: LengthDistribution, *, ms_per_token: float, first_token_s: float = 0.0, rollouts: int = 1
) -> GenerationTimes:
    """Return how long rollouts take at a steady pace.

    Args:
        ms_per_token: milliseconds between two tokens of one rollout while the others are in flight.
        first_token_s: seconds until the first token, the prefill of the prompt.
        rollouts: R, the rollouts of one batch, of which the longest is estimated.
    """

    def seconds(tokens: float) -> float:
        return first_token_s + tokens * ms_per_token / 1000.0

    return GenerationTimes(
        mean_s=seconds(lengths.mean),
        p50_s=seconds(lengths.quantile(0.5)),
        p90_s=seconds(lengths.quantile(0.9)),
        p99_s=seconds(lengths.quantile(0.99)),
        longest_s=seconds(lengths.expected_longest(rollouts)),
    )
