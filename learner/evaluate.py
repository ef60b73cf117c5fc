"""Evaluation: completions of held-out prompts, and pass@k. Scoring is the coordinator's, which owns the tasks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from rollcast.policy.params import Params
from rollcast.policy.sampler import Completion, Sampler, SampleRequest
from rollcast.wire.rollouts import Sampling


def evaluation_seed(seed: int, prompt_index: int, sample_index: int) -> int:
    """64-bit noise seed of one evaluation sample; the domain keeps it apart from training's slot seeds."""
    text = f"rollcast/evaluation/{seed}/{prompt_index}/{sample_index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def complete_prompts(
    sampler: Sampler,
    params: Params,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    *,
    seed: int,
    samples: int = 1,
    greedy: bool = False,
) -> list[list[Completion]]:
    """``samples`` completions for each prompt, in the order of the prompts."""
    requests = [
        SampleRequest(prompt, evaluation_seed(seed, prompt_index, sample_index))
        for prompt_index, prompt in enumerate(prompts)
        for sample_index in range(samples)
    ]
    completions = sampler.generate(params, requests, sampling, greedy)
    return [completions[start : start + samples] for start in range(0, len(completions), samples)]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased chance that at least one of k completions is right (Chen et al. 2021, equation 1).

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right in {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
