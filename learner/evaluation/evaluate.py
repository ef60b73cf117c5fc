"""Complete held-out prompts. The coordinator, which owns the tasks, scores the completions."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Completion, Sampler, SampleRequest
from rollcast.wire.evaluation import evaluation_seed
from rollcast.wire.rollouts import Sampling


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
