"""Complete held-out prompts and estimate pass@k. The coordinator, which owns the tasks, scores the completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Completion, Sampler, SampleRequest
from rollcast.wire.evaluation import evaluation_seed
from rollcast.wire.rollouts import Sampling

NORMAL_95 = 1.96  # standard errors to each side of a 95 % interval of a normal distribution


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    mean: float
    low: float
    high: float


def complete_prompts(
    sampler: Sampler,
    params: Params,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    *,
    seed: int,
    samples: int = 1,
    greedy: bool = False,
    numbers: Sequence[int] | None = None,
) -> list[list[Completion]]:
    """Generate ``samples`` completions for each prompt and return them in the order of the prompts.

    ``numbers``: the number of each prompt from which its noise follows; None: its index in ``prompts``.
    """
    requests = [
        SampleRequest(prompt, evaluation_seed(seed, number, sample_index))
        for number, prompt in zip(numbers or range(len(prompts)), prompts, strict=True)
        for sample_index in range(samples)
    ]
    completions = sampler.generate(params, requests, sampling, greedy)
    return [completions[start : start + samples] for start in range(0, len(completions), samples)]


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
