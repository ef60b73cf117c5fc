"""Estimate pass@k, and state the results of an evaluation. Needs no jax, so that the command line can show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollcast.runtime.errors import ConfigError

NORMAL_95 = 1.96  # standard errors to each side of a 95 % interval of a normal distribution


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SetResult:
    """The exact match on one set at the run's sampling temperature, as pass@k by k."""

    problems: int
    samples: int
    pass_at: Mapping[int, Estimate]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The results of all sets, by name, and the time that they took."""

    step: int  # the checkpoint's
    sets: Mapping[str, SetResult]
    seconds: float


def check_pass_at(samples: int, pass_at: Sequence[int]) -> None:
    """Check that each k of pass@k can be estimated from so many samples.

    Raises:
        ConfigError: there is no k, or one is below 1 or above the number of samples.
    """
    if min(pass_at, default=0) < 1:
        raise ConfigError("each k of pass@k must be at least 1", fix="use --k 1 or more")
    if max(pass_at) > samples:
        raise ConfigError(
            f"pass@{max(pass_at)} cannot be estimated from {samples} samples of each problem",
            fix=f"use --samples {max(pass_at)} or more, or a smaller --k",
        )


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Estimate without bias the chance that at least one of k completions is right (Chen et al. 2021, equation 1).

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right in {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def estimate_pass_at_k(samples: int, correct: Sequence[int], k: int) -> Estimate:
    """Estimate the mean of pass@k over problems, of whose ``samples`` completions each has ``correct`` right ones.

    The interval is that of the mean over problems as independent samples (Miller 2024, "Adding error bars to evals",
    section 2). The completions of one problem are not independent, so they enter only through that problem's unbiased
    estimate. With one problem the spread is unknown, and the interval is [0, 1].

    Raises:
        ValueError: there is no problem; see also pass_at_k.
    """
    if not correct:
        raise ValueError("no problem was evaluated")
    each = [pass_at_k(samples, right, k) for right in correct]
    mean = sum(each) / len(each)
    if len(each) == 1:
        return Estimate(mean, 0.0, 1.0)
    variance = sum((one - mean) ** 2 for one in each) / (len(each) - 1)
    reach = NORMAL_95 * math.sqrt(variance / len(each))
    return Estimate(mean, max(0.0, mean - reach), min(1.0, mean + reach))
